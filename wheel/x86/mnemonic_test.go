package x86

import (
	"bytes"
	"regexp"
	"strings"
)

// What a line of objdump needs, told by its mnemonic: a second account of the
// matter, which shares nothing with opcodes.txt. Sources: the psABI's levels and
// the instruction lists of Intel's and AMD's manuals.

type row struct {
	need  Need
	kinds *regexp.Regexp
}

// byMnemonic are the features beyond the levels, then what raises the level in
// legacy encoding. The first that matches counts.
var byMnemonic = []row{
	beyond("vaes", `(EVEX )?vaes(enc|dec)(last)? wide|EVEX vaes(enc|dec)(last)?`),
	beyond("aes", `v?aes(enc|enclast|dec|declast|imc|keygenassist)`),
	beyond("vpclmulqdq", `(EVEX )?vpclmul\w+ wide|EVEX vpclmul\w+`),
	beyond("pclmulqdq", `v?pclmul\w+`),
	beyond("gfni", `v?gf2p8\w+`),
	beyond("sha512", `vsha512\w+`),
	beyond("sm3", `vsm3\w+`),
	beyond("sm4", `vsm4\w+`),
	beyond("sha_ni", `sha(1|256)\w+`),
	beyond("avx512_4vnniw", `vp4dp\w+`),
	beyond("avx512_4fmaps", `v4fn?madd\w+`),
	beyond("avx512_vnni", `EVEX vpdp(bu|ws)sds?`),
	beyond("avx_vnni", `vpdp(bu|ws)sds?`),
	beyond("avx_vnni_int8", `vpdpb(s|u)(s|u)ds?`),
	beyond("avx_vnni_int16", `vpdpw(s|u)(s|u)ds?`),
	beyond("avx512ifma", `EVEX vpmadd52\w+`),
	beyond("avx_ifma", `vpmadd52\w+`),
	beyond("avx512_bf16", `EVEX v(cvtne2?ps2?bf16|cvtne2ps2bf16|cvtneps2bf16|dpbf16ps)[xy]?`),
	beyond("avx_ne_convert", `v(cvtneps2bf16|cvtnee(bf16|ph)2ps|cvtneo(bf16|ph)2ps|bcstnesh2ps|bcstnebf162ps)[xy]?`),
	beyond("avx512_bitalg", `EVEX v(popcnt[bw]|pshufbitqmb)`),
	beyond("avx512_vpopcntdq", `vpopcnt[dq]`),
	beyond("avx512vbmi", `vp(ermb|erm[it]2b|multishiftqb)`),
	beyond("avx512_vbmi2", `vp(compress|expand)[bw]|vpsh[lr]dv?[wdq]`),
	beyond("avx512_vp2intersect", `vp2intersect[dq]`),
	beyond("avx512er", `v(exp2|rcp28|rsqrt28)[ps][sd]`),
	beyond("avx512pf", `v(gather|scatter)pf[01][dq]p[sd]`),
	{Need{Level: V4}, whole(`EVEX vcvt(ph2ps|ps2ph)`)},
	beyond("avx512_fp16", `EVEX v\w*(sh|ph)[xyz]*|EVEX vcvt\w*(sh|ph)2\w+|EVEX vcvtu?si2sh[lq]|EVEX vmovw`),
	beyond("amx_int8", `tdpb[su]{2}d`),
	beyond("amx_bf16", `tdpbf16ps`),
	beyond("amx_fp16", `tdpfp16ps`),
	beyond("amx_complex", `tcmm\w+`),
	beyond("amx_tile", `(ld|st)tilecfg|tile(loadd|loaddt1|stored|zero|release)`),
	beyond("cmpccxadd", `cmpn?(o|b|z|be|s|p|l|le|e|ae|nb|nbe|nl|nle|ge|g|a|c|nc)xadd`),
	beyond("fma4", `vfn?m(add|sub|addsub|subadd)[ps][sd]`),
	beyond("xop", `vp(cmov|perm|macs\w+|madcs\w+|com(|eq|neq|[lg][te]|true|false)u?[bwdq]|hadd(u?[bw][wdq]|u?dq)|hsub(bw|wd|dq)|rot[bwdq]|sh[al][bwdq])|vpermil2p[sd]|vfrcz[ps][sd]`),
	beyond("tbm", `(blcfill|blci|blcic|blcmsk|blcs|blsfill|blsic|t1mskc|tzmsk)|XOP bextr`),
	beyond("lwp", `(llwpcb|slwpcb|lwpval|lwpins)`),
	beyond("adx", `ad[co]x`),
	beyond("rdrand", `rdrand`),
	beyond("rdseed", `rdseed`),
	beyond("rdpid", `rdpid`),
	beyond("fsgsbase", `(rd|wr)[fg]sbase`),
	beyond("rtm", `(xbegin|xbeginw|xabort|xend|xtest)`),
	beyond("pku", `(rd|wr)pkru`),
	beyond("sgx", `enclu`),
	beyond("clflushopt", `clflushopt`),
	beyond("clwb", `clwb`),
	beyond("movdiri", `movdiri`),
	beyond("movdir64b", `movdir64b`),
	beyond("enqcmd", `enqcmds?`),
	beyond("waitpkg", `(umonitor|umwait|tpause)`),
	beyond("serialize", `serialize`),
	beyond("tsxldtrk", `x(sus|res)ldtrk`),
	beyond("uintr", `(uiret|clui|stui|testui|senduipi)`),
	beyond("ptwrite", `ptwrite[lq]?`),
	beyond("hreset", `hreset`),
	beyond("raoint", `a(add|and|or|xor)`),
	beyond("xsaveopt", `xsaveopt(64)?`),
	beyond("xsavec", `xsavec(64)?`),
	beyond("xsaves", `(xsaves|xrstors)(64)?`),
	beyond("clzero", `clzero`),
	beyond("mwaitx", `(monitorx|mwaitx)`),
	beyond("rdpru", `rdpru`),
	beyond("3dnowext", `(pf2iw|pfnacc|pfpnacc|pi2fw|pswapd)`),
	beyond("3dnow", `(femms|pavgusb|pf2id|pfacc|pfadd|pfcmp\w+|pfm(ax|in|ul)|pfrcp\w*|pfrsq\w+|pfsubr?|pi2fd|pmulhrw)`),
	beyond("sse4a", `(extrq|insertq|movnts[sd])`),
	beyond("rng", `xstore-rng`),
	beyond("ace", `xcrypt-\w+`),
	beyond("pmm", `montmul`),
	beyond("phe", `xsha(1|256)`),
	beyond("widekl", `aes(enc|dec)wide\w+`),
	beyond("kl", `aes(enc|dec)(128|256)kl|encodekey\w+|loadiwkey`),

	{Need{Level: V2}, whole(`popcnt[wlq]?|cmpxchg16b|[ls]ahf|addsubp[sd]|h(add|sub)p[sd]|lddqu|movddup|movs[hl]dup|fisttp(l|ll|s)?`)},
	{Need{Level: V2}, whole(`pabs[bwd]|palignr|ph(add|sub)(w|d|sw)|pmaddubsw|pmulhrsw|pshufb|psign[bwd]`)},
	{Need{Level: V2}, whole(`blendv?p[sd]|dpp[sd]|extractps|insertps|movntdqa|mpsadbw|packusdw|pblend(vb|w)|pcmp(eq|gt)q|pextr[bdq]|phminposuw|pinsr[bdq]|pm(ax|in)(sb|sd|uw|ud)|pmov[sz]x\w+|pmul(dq|ld)|ptest|round[ps][sd]`)},
	{Need{Level: V2}, whole(`pcmp[ei]str[im][lq]?|crc32[bwlq]?`)},
	{Need{Level: V2}, whole(`pextrw memory|0F3A pextrw( memory)?`)},
	{Need{Level: V3}, whole(`lzcnt[wlq]?|movbe[wlq]?|xsave(64)?|xrstor(64)?`)},
	{Need{CPUID: true}, whole(`cpuid`)},
	{Need{XGETBV: true}, whole(`xgetbv`)},
}

func beyond(feature, kinds string) row { return row{Need{Feature: feature}, whole(kinds)} }

// whole matches kinds, with or without the mark of a wide or a memory operand.
func whole(kinds string) *regexp.Regexp {
	return regexp.MustCompile(`^(EVEX )?(` + kinds + `)( wide)?( memory)?$`)
}

var maskOp = regexp.MustCompile(`^k(mov|andn?|x?n?or|not|unpck|shift[lr]|test|ortest|add)(b|w|d|q|bw|wd|dq)$`)

// oracle tells what lines of objdump need, remembering the kinds it has seen.
type oracle map[string]Need

// need takes one line. Which encoding it has, the first byte of the opcode tells:
// in 64-bit code C4 and C5 are VEX and 62 is EVEX.
func (o oracle) need(l line) Need {
	mnemonic, operands, _ := strings.Cut(withoutPrefixes(l.text), " ")
	opcode := behindPrefixes(l.code)
	floor, kind := V1, mnemonic
	switch {
	case opcode[0] == 0x62:
		floor, kind = V4, "EVEX "+mnemonic
	case opcode[0] == 0xc4, opcode[0] == 0xc5:
		floor = V3
		if maskOp.MatchString(mnemonic) {
			floor = V4
		}
	case opcode[0] == 0x8f && mnemonic[0] == 'v':
		floor = V3
	case opcode[0] == 0x8f && mnemonic == "bextr":
		kind = "XOP bextr"
	case bytes.HasPrefix(opcode, []byte{0x0f, 0x3a}):
		kind = strings.Replace(mnemonic, "pextrw", "0F3A pextrw", 1)
	}
	if strings.Contains(operands, "%ymm") || strings.Contains(operands, "%zmm") {
		kind += " wide"
	}
	if strings.Contains(operands, "(") {
		kind += " memory"
	}
	need, ok := o[kind]
	if !ok {
		need = needOf(kind)
		o[kind] = need
	}
	need.Level = max(need.Level, floor)
	need.SSE = need.Level < V3 && need.Feature == "" && vector.MatchString(mnemonic+" "+operands)
	need.General = need.Level == V3 && need.Feature == "" && general.MatchString(mnemonic)
	return need
}

// general matches the instructions of V3 on general registers.
var general = regexp.MustCompile(`^(lzcnt|movbe|andn|bextr|blsi|blsmsk|blsr|bzhi|mulx|pdep|pext|rorx|sarx|shlx|shrx)[wlq]?$`)

// vector matches instructions that name a vector register, and the few that may
// have their vector operand in memory only.
var vector = regexp.MustCompile(`%x?mm|^cvtt?s[sd]2si`)

func needOf(kind string) Need {
	for _, r := range byMnemonic {
		if r.kinds.MatchString(kind) {
			return r.need
		}
	}
	return Need{}
}
