package x86

// form describes the bytes of an instruction after its opcode: whether there is a ModRM byte,
// and which immediate.
type form uint8

// Kinds of immediates, including offsets and addresses.
const (
	immNone    form = iota
	immByte         // 8 bits
	immWord         // 16 bits
	immEnter        // 16 and 8 bits
	immLong         // 32 bits
	immZ            // 16 bits with prefix 66, 32 otherwise: of the operand's size, but at most 32
	immFull         // of the operand's size
	immAddress      // of the address's size

	immTest  form = 1 << 3 // only where the reg field of ModRM is 0 or 1
	immKinds      = 1 << 4
	immMask  form = immKinds - 1
	hasModRM form = 1 << 4
)

// leads is the meaning of each byte at the start of an instruction: an opcode of the one-byte map, a
// prefix, or the start of another map.
const leads = "" +
	// 1 2 3 4 5 6 7 8 9 A B C D E F
	"...............0" +
	"................" +
	"......s.......s." +
	"......s.......s." +
	"RRRRRRRRRRRRRRRR" +
	"................" +
	"..v.ss67........" +
	"................" +
	"...............v" +
	"................" +
	"................" +
	"................" +
	"....vv.........." +
	"................" +
	"................" +
	"s.23............"

const (
	leadOpcode        = '.'
	lead0F            = '0'
	leadREX           = 'R'
	lead66            = '6'
	lead67            = '7'
	leadF2            = '2'
	leadF3            = '3'
	leadLockOrSegment = 's'
	leadVector        = 'v' // VEX, EVEX, XOP
)

// oneByteForms and twoByteForms are the forms of the opcodes of the maps 1B and 0F, in the
// letters of legacyForm. Source: Intel SDM volume 2, tables. A blank is not an
// instruction, or not an opcode.
const (
	oneByteForms = "" +
		// 1 2 3 4 5 6 7 8 9 A B C D E F
		"mmmmbz  mmmmbz  " +
		"mmmmbz  mmmmbz  " +
		"mmmmbz  mmmmbz  " +
		"mmmmbz  mmmmbz  " +
		"                " +
		"................" +
		"   m    zZbB...." +
		"bbbbbbbbbbbbbbbb" +
		"BZ Bmmmmmmmmmmmm" +
		".......... ....." +
		"aaaa....bz......" +
		"bbbbbbbbffffffff" +
		"BBw.  BZe.w..b ." +
		"mmmm   .mmmmmmmm" +
		"bbbbbbbbll b...." +
		" .  ..tT......mm"
	twoByteForms = "" +
		// 1 2 3 4 5 6 7 8 9 A B C D E F
		"mmmm ..... . m. " +
		"mmmmmmmmmmmmmmmm" +
		"bbbb    mmmmmmmm" + // mov of control registers: ModRM's mod is ignored
		"...... .        " +
		"mmmmmmmmmmmmmmmm" +
		"mmmmmmmmmmmmmmmm" +
		"mmmmmmmmmmmmmmmm" +
		"BBBBmmm.mm  mmmm" +
		"llllllllllllllll" +
		"mmmmmmmmmmmmmmmm" +
		"...mBmmm...mBmmm" +
		"mmmmmmmmmmBmmmmm" +
		"mmBmBBBm........" +
		"mmmmmmmmmmmmmmmm" +
		"mmmmmmmmmmmmmmmm" +
		"mmmmmmmmmmmmmmmm"
)

func legacyForm(letter byte) form {
	switch letter {
	case 'm':
		return hasModRM
	case 'b':
		return immByte
	case 'B':
		return hasModRM | immByte
	case 'w':
		return immWord
	case 'z':
		return immZ
	case 'Z':
		return hasModRM | immZ
	case 'l':
		return immLong
	case 'f':
		return immFull
	case 'a':
		return immAddress
	case 'e':
		return immEnter
	case 't':
		return hasModRM | immTest | immByte
	case 'T':
		return hasModRM | immTest | immZ
	}
	return immNone
}

// formOf returns the form of an opcode of map m on a page of the given key.
func formOf(m, key, opcode uint8) form {
	switch m {
	case mapOneByte:
		return legacyForm(oneByteForms[opcode])
	case map0F:
		if pp := key & 3; opcode == 0x78 && pp != ppNone {
			return hasModRM | immWord // extrq, insertq: two bytes
		}
		return legacyForm(twoByteForms[opcode])
	case mapVEX0F, mapEVEX0F:
		if opcode == 0x77 { // vzeroupper
			return immNone
		}
		return legacyForm(twoByteForms[opcode]) | hasModRM
	case map0F3A, mapVEX0F3A, mapEVEX0F3A, mapXOP8:
		return hasModRM | immByte
	case mapXOPA:
		return hasModRM | immLong
	}
	return hasModRM
}
