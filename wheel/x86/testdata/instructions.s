# Instructions of all classes, by what they need: the section's name says it.
# The assembler agrees, as .arch makes it refuse what needs more.
.macro needs name, extensions:vararg
.section \name,"ax"
.arch generic64
.irp e,\extensions
.ifnb \e
.arch .\e
.endif
.endr
.endm

# Operands of different lengths: registers, ModRM, SIB, displacements.
.macro forms op, size, dst:vararg
\op %\size\()cx, \dst
\op %\size\()cx, (%rax)
\op %\size\()cx, (%rsp)
\op %\size\()cx, (%r12)
\op %\size\()cx, (%r13)
\op %\size\()cx, 8(%rbp)
\op %\size\()cx, 0x12345678(%rdi)
\op %\size\()cx, 0x12345678(%rip)
\op %\size\()cx, 0x12345678
\op %\size\()cx, (%r8,%r9,4)
\op %\size\()cx, 8(%rax,%r15,8)
\op %\size\()cx, 0x12345678(,%rsi,2)
\op %\size\()cx, %fs:0x28
\op %\size\()cx, %gs:(%rax)
\op %\size\()cx, (%eax,%ebx)
\op %\size\()cx, 4(%eip)
.endm

needs v1
.irp op,add,or,adc,sbb,and,sub,xor,cmp,test,mov,xchg
forms \op,r,%rdx
forms \op,e,%edx
forms \op,,%dx
\op %cl,%dl
\op %r8b,%r9b
\op %sil,(%r10)
.endr
.irp op,add,or,adc,sbb,and,sub,xor,cmp,test,mov
\op $1,%al
\op $1,%ax
\op $1,%eax
\op $1,%rax
\op $0x1234,%ax
\op $0x12345678,%eax
\op $0x12345678,%rax
\op $0x1234,%r9w
\op\()b $1,(%rax)
\op\()w $0x1234,4(%rax)
\op\()l $0x12345678,(%rsp)
\op\()q $0x12345678,8(%rip)
.endr
.irp op,rol,ror,rcl,rcr,shl,shr,sar
\op %eax
\op $3,%r8
\op %cl,%ax
\op\()b $1,(%rax)
\op\()q %cl,8(%rsp)
.endr
.irp op,not,neg,mul,imul,div,idiv,inc,dec
\op %al
\op %r9
\op\()b (%rax)
\op\()w (%rax)
\op\()l 8(%r12)
\op\()q 8(%rip)
.endr
.irp c,o,no,b,ae,e,ne,be,a,s,ns,p,np,l,ge,le,g
j\c .+4
j\c .+4096
set\c %al
set\c 8(%rax,%rbx)
cmov\c %eax,%ebx
cmov\c 8(%rsp),%r9
.endr
movabs $0x123456789abcdef0,%rax
movabs $0x123456789abcdef0,%r9
movabs 0x123456789abcdef0,%eax
movabs %al,0x123456789abcdef0
movabs 0x123456789abcdef0,%rax
addr32 mov 0x12345678,%eax
mov $-1,%rax
mov %ds,%eax
mov %eax,%es
mov %cr0,%rax
mov %rax,%cr8
mov %db7,%rax
imul %rax,%rbx
imul $3,%rax,%rbx
imul $0x12345678,(%rax),%ebx
imul $0x1234,%ax,%bx
movslq %eax,%rbx
movsbl (%rax),%ecx
movzwl %ax,%ecx
movzbl 4(%rax),%ecx
lea 4(%rax,%rbx,8),%rcx
lea 4(%rax),%cx
lea 0(%rip),%rax
push %rax
push %r15
push $1
push $0x12345678
pushw $0x1234
pushq 8(%rax)
push %fs
pop %rax
popq 8(%r12)
pop %gs
call .+5
call *%rax
call *8(%rip)
notrack jmp *%rax
notrack jmp *8(%rax,%rbx,8)
lcall *(%rax)
ljmp *(%rax)
jmp .+4
jmp .+4096
ret
ret $8
lretq
lretl $8
fcoms (%rax)
fcom %st(1)
fcompl 8(%rax)
fcomp %st(2)
iretq
enter $16,$2
leave
loop .
loope .
loopne .
jrcxz .
jecxz .
int $0x80
int3
int1
nop
nopw 0x0(%rax,%rax,1)
nopl 8(%rax)
nopw %cs:0x200(%rax,%rax,1)
data16 nopl 0x0(%rax,%rax,1)
.byte 0x66,0x66,0x2e,0x0f,0x1f,0x84,0,0,0,0,0
hlt
cmc
clc
stc
cli
sti
cld
std
cbtw
cwtl
cltq
cwtd
cltd
cqto
xlat
in $4,%al
in (%dx),%eax
out %al,$4
out %ax,(%dx)
.irp op,movs,cmps,stos,lods,scas
\op\()b
\op\()w
\op\()l
\op\()q
rep \op\()b
repne \op\()q
.endr
insb
outsl
pushfq
popfq
lock add %eax,(%rbx)
lock cmpxchg %rax,(%rbx)
lock xadd %eax,(%rbx)
lock cmpxchg8b (%rax)
lock incl (%rax)
xacquire lock add %eax,(%rbx)
xrelease movl $1,(%rbx)
bt %eax,(%rbx)
bts $3,%rax
btrl $3,(%rax)
btc %rax,%rbx
bsf %eax,%ebx
bsr (%rax),%rbx
shld $3,%eax,%ebx
shld %cl,%eax,(%rbx)
shrd $3,%rax,(%rbx)
bswap %eax
bswap %r9
ud2
ud1 %eax,%ebx
ud0 %eax,%ebx
syscall
sysretq
sysenter
rdtsc
rdpmc
rdmsr
wrmsr
lfence
mfence
sfence
clflush (%rax)
fxsave (%rax)
fxrstor64 (%rax)
ldmxcsr (%rax)
stmxcsr 4(%rsp)
sgdt (%rax)
lidt (%rax)
smsw %eax
lmsw %ax
invlpg (%rax)
sldt %eax
str %eax
ltr %ax
verr %ax
lar %eax,%ebx
lsl %eax,%ebx
clts
wbinvd
invd
swapgs
prefetcht0 (%rax)
prefetchnta 64(%rax)
emms
# x87
.irp op,fadd,fmul,fsub,fsubr,fdiv,fdivr
\op\()s (%rax)
\op\()l 8(%rax)
\op %st(3),%st
.endr
.irp op,fiadd,fimul,ficom,ficomp,fisub,fisubr,fidiv,fidivr
\op\()s (%rax)
\op\()l 8(%rax)
.endr
.irp op,faddp,fmulp,fsubp,fsubrp,fdivp,fdivrp
\op %st,%st(2)
.endr
.irp op,fldt,fstpt
\op (%rsp)
.endr
.irp op,fchs,fabs,ftst,fxam,fld1,fldl2t,fldl2e,fldpi,fldlg2,fldln2,fldz,f2xm1,fyl2x,fptan,fpatan,fxtract,fprem1,fdecstp,fincstp,fprem,fyl2xp1,fsqrt,fsincos,frndint,fscale,fsin,fcos,fnop,fcompp,fucompp,fninit,fnclex,fwait
\op
.endr
flds (%rax)
fldl (%rax)
fsts (%rax)
fstpl (%rax)
fld %st(1)
fxch %st(1)
fst %st(1)
fstp %st(1)
ffree %st(1)
ffreep %st(1)
fucom %st(1)
fucomp %st(1)
fucomi %st(1),%st
fucomip %st(1),%st
fcomi %st(1),%st
fcomip %st(1),%st
fcmovb %st(1),%st
fcmovnu %st(1),%st
filds (%rax)
fildl (%rax)
fildll (%rax)
fistl (%rax)
fistps (%rax)
fistpll (%rax)
fbld (%rax)
fbstp (%rax)
fnstcw (%rax)
fldcw (%rax)
fstcw (%rax)
fnstenv (%rax)
fldenv (%rax)
fnsave (%rax)
frstor (%rax)
fnstsw %ax
fstsw (%rax)
# MMX, SSE, SSE2
.irp op,paddb,paddw,paddd,paddq,paddsb,paddusw,psubb,psubq,pmullw,pmulhw,pmulhuw,pmuludq,pmaddwd,pavgb,psadbw,pminub,pmaxsw,pand,pandn,por,pxor,pcmpeqb,pcmpeqd,pcmpgtb,punpcklbw,punpckhdq,packsswb,packuswb,psllw,pslld,psrlq,psrad
\op %mm1,%mm2
\op 8(%rax),%mm2
\op %xmm1,%xmm2
\op 8(%rax,%rbx,4),%xmm12
.endr
.irp op,psllw,psrlw,psraw,pslld,psrld,psrad,psllq,psrlq
\op $3,%mm1
\op $3,%xmm9
.endr
psrldq $3,%xmm1
pslldq $3,%xmm1
.irp op,add,mul,sub,div,min,max,sqrt
.irp t,ps,pd,ss,sd
\op\t %xmm1,%xmm2
\op\t 8(%rip),%xmm9
.endr
.endr
.irp t,ps,pd,ss,sd
cmpeq\t %xmm1,%xmm2
cmpnlt\t (%rax),%xmm2
.endr
.irp op,and,andn,or,xor,unpckl,unpckh,mova,movu
.irp t,ps,pd
\op\t %xmm1,%xmm2
\op\t (%rax),%xmm9
.endr
.endr
.irp t,ps,pd
shuf\t $3,%xmm1,%xmm2
mova\t %xmm1,(%rax)
movu\t %xmm1,(%rax)
movl\t (%rax),%xmm1
movh\t %xmm1,(%rax)
movmsk\t %xmm1,%eax
movnt\t %xmm1,(%rax)
.endr
rcpps %xmm1,%xmm2
rsqrtss (%rax),%xmm2
movhlps %xmm1,%xmm2
movlhps %xmm1,%xmm2
movss (%rax),%xmm1
movsd %xmm1,(%rax)
movd %eax,%xmm1
movq %rax,%xmm1
movd %mm1,(%rax)
movq %mm1,%mm2
movq %xmm1,(%rax)
movdqa (%rax),%xmm1
movdqu %xmm1,(%rax)
movdq2q %xmm1,%mm1
movq2dq %mm1,%xmm1
movntdq %xmm1,(%rax)
movntq %mm1,(%rax)
movnti %eax,(%rax)
movnti %rax,(%rax)
maskmovdqu %xmm1,%xmm2
maskmovq %mm1,%mm2
pmovmskb %xmm1,%eax
pmovmskb %mm1,%eax
pextrw $1,%xmm1,%eax
pextrw $1,%mm1,%eax
pinsrw $1,%eax,%xmm1
pinsrw $1,(%rax),%mm1
pshufd $3,%xmm1,%xmm2
pshufhw $3,%xmm1,%xmm2
pshuflw $3,(%rax),%xmm2
pshufw $3,%mm1,%mm2
punpcklqdq %xmm1,%xmm2
comiss %xmm1,%xmm2
ucomisd (%rax),%xmm2
.irp op,cvtps2pd,cvtpd2ps,cvtss2sd,cvtsd2ss,cvtdq2ps,cvtdq2pd,cvtps2dq,cvttps2dq,cvtpd2dq,cvttpd2dq
\op %xmm1,%xmm2
.endr
cvtpi2ps %mm1,%xmm1
cvttpd2pi %xmm1,%mm1
cvtsi2ss %eax,%xmm1
cvtsi2sd %rax,%xmm1
cvttss2si %xmm1,%eax
cvtsd2si (%rax),%rax

# No-ops on CPUs that do not know them, and what only a kernel runs.
needs v1,ibt,shstk,cldemote,rdtscp,prefetchi,prefetchwt1,mpx,bmi,svme,vmx,smap,invpcid,wbnoinvd,pconfig,3dnow,sse3,prfchw
endbr64
endbr32
pause
rdsspq %rax
incsspq %rax
saveprevssp
cldemote (%rax)
rdtscp
prefetchw (%rax)
prefetch (%rax)
prefetchit0 8(%rip)
prefetchwt1 (%rax)
bndmov (%rax),%bnd0
bnd jmp .
tzcnt %eax,%ebx
tzcnt %rax,%rbx
tzcnt (%rax),%cx
vmrun
vmcall
clac
invpcid (%rax),%rbx
wbnoinvd
pconfig
monitor
mwait
needs v1.cpuid
cpuid
needs v1.xgetbv,xsave
xgetbv

needs v2,sse3,ssse3,sse4.1,sse4.2,popcnt,cx16
lahf
sahf
popcnt %ax,%bx
popcnt (%rax),%r9
lock cmpxchg16b (%rax)
.irp op,addsubps,addsubpd,haddps,haddpd,hsubps,hsubpd,movddup,movshdup,movsldup
\op %xmm1,%xmm2
\op 8(%rax),%xmm9
.endr
lddqu (%rax),%xmm1
.irp op,pabsb,pabsw,pabsd,phaddw,phaddd,phaddsw,phsubw,phsubd,phsubsw,pmaddubsw,pmulhrsw,pshufb,psignb,psignw,psignd
\op %mm1,%mm2
\op (%rax),%mm2
\op %xmm1,%xmm2
\op 8(%rax,%rbx),%xmm9
.endr
palignr $3,%mm1,%mm2
palignr $3,8(%rip),%xmm2
.irp op,packusdw,pcmpeqq,pcmpgtq,pmaxsb,pmaxsd,pmaxud,pmaxuw,pminsb,pminsd,pminud,pminuw,pmuldq,pmulld,phminposuw,ptest,pmovsxbw,pmovsxbd,pmovsxbq,pmovsxwd,pmovsxwq,pmovsxdq,pmovzxbw,pmovzxbd,pmovzxbq,pmovzxwd,pmovzxwq,pmovzxdq
\op %xmm1,%xmm2
\op 8(%r12),%xmm9
.endr
.irp op,blendps,blendpd,dpps,dppd,mpsadbw,pblendw,roundps,roundpd,roundss,roundsd,insertps,pcmpestri,pcmpestrm,pcmpistri,pcmpistrm
\op $3,%xmm1,%xmm2
\op $3,8(%rip),%xmm9
.endr
blendvps %xmm0,%xmm1,%xmm2
blendvpd %xmm0,(%rax),%xmm2
pblendvb %xmm0,%xmm1,%xmm2
extractps $1,%xmm1,%eax
pextrb $1,%xmm1,%eax
pextrd $1,%xmm1,(%rax)
pextrq $1,%xmm1,%rax
pextrw $1,%xmm1,(%rax)
pinsrb $1,%eax,%xmm1
pinsrd $1,(%rax),%xmm1
pinsrq $1,%rax,%xmm1
movntdqa (%rax),%xmm1
crc32b %al,%ebx
crc32w %ax,%ebx
crc32l (%rax),%ebx
crc32q %rax,%rbx
.arch nocona
fisttps (%rax)
fisttpl (%rax)
fisttpll (%rax)

needs v3,avx,avx2,bmi,bmi2,f16c,fma,lzcnt,movbe,xsave
lzcnt %ax,%bx
lzcnt %eax,%ebx
lzcnt (%rax),%r9
movbe (%rax),%bx
movbe %ebx,(%rax)
movbe 8(%rsp),%r9
xsave (%rax)
xrstor64 (%rax)
.irp op,andn,pdep,pext,mulx
\op %eax,%ebx,%ecx
\op 8(%rax),%r9,%r10
.endr
.irp op,bextr,bzhi,sarx,shlx,shrx
\op %eax,%ebx,%ecx
\op %r9,8(%rip),%r10
.endr
.irp op,blsi,blsr,blsmsk
\op %eax,%ebx
\op (%r9),%r10
.endr
rorx $3,%eax,%ebx
rorx $3,(%rax),%r9
vzeroupper
vzeroall
.irp op,add,mul,sub,div,min,max,fmadd132,fmadd213,fmadd231,fmsub132,fnmadd213,fnmsub231
.irp t,ps,pd,ss,sd
v\op\t %xmm1,%xmm2,%xmm3
v\op\t 8(%rax,%r9,4),%xmm2,%xmm13
.endr
.endr
.irp t,ps,pd,ss,sd
vcmpnge_uq\t %xmm1,%xmm2,%xmm3
.endr
.irp op,add,mul,and,andn,or,xor,unpckl,unpckh,hadd,hsub,addsub
.irp t,ps,pd
v\op\t %ymm1,%ymm2,%ymm3
v\op\t 8(%rip),%ymm2,%ymm13
.endr
.endr
.irp t,ps,pd
vsqrt\t %ymm1,%ymm2
vmova\t (%rax),%ymm2
vmovu\t %ymm2,(%r8)
vshuf\t $3,%ymm1,%ymm2,%ymm3
vblend\t $3,%ymm1,%ymm2,%ymm3
vblendv\t %ymm4,%ymm1,%ymm2,%ymm3
vround\t $3,%ymm1,%ymm2
vpermil\t $3,%ymm1,%ymm2
vpermil\t %ymm1,%ymm2,%ymm3
vtest\t %ymm1,%ymm2
vmaskmov\t (%rax),%ymm1,%ymm2
vmovmsk\t %ymm1,%eax
vfmaddsub231\t %ymm1,%ymm2,%ymm3
vgatherd\t %xmm1,(%rax,%xmm2,4),%xmm3
vgatherq\t %xmm1,8(%rax,%xmm2,4),%xmm3
vmovnt\t %ymm1,(%rax)
.endr
.irp op,vpaddb,vpaddq,vpsubd,vpmulld,vpmuludq,vpand,vpandn,vpor,vpxor,vpcmpeqb,vpcmpgtq,vpshufb,vpunpckhqdq,vpackusdw,vpmaddubsw,vpmaxsd,vpminuw,vpsllvd,vpsrlvq,vpsravd,vpavgb,vpsadbw,vphaddd,vpsignw
\op %xmm1,%xmm2,%xmm3
\op %ymm1,%ymm2,%ymm13
\op 8(%r9),%ymm2,%ymm3
.endr
.irp op,vpsllw,vpsrad,vpsrlq
\op $3,%ymm1,%ymm2
\op %xmm1,%ymm2,%ymm3
.endr
vpsrldq $3,%ymm1,%ymm2
vpalignr $3,%ymm1,%ymm2,%ymm3
vpblendd $3,%ymm1,%ymm2,%ymm3
vpblendvb %ymm1,%ymm2,%ymm3,%ymm4
vpermd %ymm1,%ymm2,%ymm3
vpermps (%rax),%ymm2,%ymm3
vpermq $3,%ymm1,%ymm2
vpermpd $3,%ymm1,%ymm2
vperm2f128 $3,%ymm1,%ymm2,%ymm3
vperm2i128 $3,(%rax),%ymm2,%ymm3
vinsertf128 $1,%xmm1,%ymm2,%ymm3
vextracti128 $1,%ymm1,(%rax)
vbroadcastss (%rax),%ymm1
vbroadcastsd %xmm0,%ymm1
vbroadcastf128 (%rax),%ymm1
vpbroadcastb %xmm0,%ymm1
vpbroadcastq (%rax),%ymm1
vpmovzxbd (%rax),%ymm1
vpmaskmovd %ymm1,%ymm2,(%rax)
vpgatherdd %ymm1,(%rax,%ymm2,4),%ymm3
vpgatherqq %ymm1,(%rax,%ymm2,8),%ymm3
vcvtph2ps %xmm1,%ymm2
vcvtph2ps (%rax),%ymm2
vcvtps2ph $3,%ymm1,(%rax)
vcvtsi2sd %rax,%xmm1,%xmm2
vcvttss2si %xmm1,%eax
vcvtdq2pd %xmm1,%ymm2
vmovd %eax,%xmm1
vmovq %rax,%xmm1
vmovq %xmm1,(%rax)
vmovss %xmm1,%xmm2,%xmm3
vmovsd (%rax),%xmm2
vmovdqu (%rax),%ymm9
vmovntdqa (%rax),%ymm1
vlddqu (%rax),%ymm1
vldmxcsr (%rax)
vpextrw $1,%xmm1,%eax
vpextrb $1,%xmm1,(%rax)
vpinsrq $1,%rax,%xmm1,%xmm2
vpcmpistri $3,%xmm1,%xmm2
vptest %ymm1,%ymm2
vdpps $3,%ymm1,%ymm2,%ymm3
vmpsadbw $3,%ymm1,%ymm2,%ymm3
vphminposuw %xmm1,%xmm2

needs v4,avx512f,avx512bw,avx512cd,avx512dq,avx512vl
.irp op,kand,kandn,kor,kxor,kxnor,kadd
.irp s,b,w,d,q
\op\s %k1,%k2,%k3
.endr
.endr
.irp s,b,w,d,q
kmov\s %k1,%k2
kmov\s (%rax),%k2
kmov\s %k2,8(%r9)
knot\s %k1,%k2
kortest\s %k1,%k2
ktest\s %k1,%k2
kshiftl\s $3,%k1,%k2
kshiftr\s $3,%k1,%k2
.endr
kmovb %k1,%eax
kmovw %eax,%k1
kmovd %k1,%eax
kmovq %rax,%k1
kunpckbw %k1,%k2,%k3
kunpckwd %k1,%k2,%k3
kunpckdq %k1,%k2,%k3
.irp r,xmm,ymm,zmm
.irp op,vaddps,vmulpd,vfmadd231ps,vpaddd,vpandd,vpmullq,vpermt2pd,vprolvd,vpsravq,vunpcklps
\op %\r\()17,%\r\()2,%\r\()3
\op %\r\()1,%\r\()2,%\r\()3{%k1}
\op 64(%rax),%\r\()18,%\r\()3{%k1}{z}
\op 63(%rax,%r9,4),%\r\()18,%\r\()30
.endr
.irp op,vpabsq,vplzcntd,vpconflictq,vrcp14ps,vgetexpps,vcvtqq2pd,vcvttps2udq
\op %\r\()17,%\r\()3
\op 0x12345678(%r13),%\r\()30{%k7}
.endr
vmovdqu8 (%rax),%\r\()1{%k1}{z}
vmovdqu16 %\r\()17,(%rax)
vmovdqa32 %\r\()17,%\r\()18
vmovdqa64 8(%rip),%\r\()18
vpcmpub $3,%\r\()1,%\r\()2,%k1
vpcmpw $3,%\r\()1,%\r\()2,%k1{%k2}
vpcmpeqd (%rax),%\r\()2,%k1
vptestmq %\r\()1,%\r\()2,%k1
vcmpneqps %\r\()1,%\r\()2,%k1
vpternlogd $0xf8,%\r\()1,%\r\()2,%\r\()3
vprorq $3,%\r\()1,%\r\()2
vpsllq $3,(%rax),%\r\()2
valignd $3,%\r\()1,%\r\()2,%\r\()3
vrndscaleps $3,%\r\()1,%\r\()2
vrangepd $3,%\r\()1,%\r\()2,%\r\()3
vfixupimmps $3,%\r\()1,%\r\()2,%\r\()3
vfpclassps $3,%\r\()1,%k1
vpmovm2b %k1,%\r\()1
vpmovq2m %\r\()1,%k1
vpermw %\r\()1,%\r\()2,%\r\()3
vpsllvw %\r\()1,%\r\()2,%\r\()3
vdbpsadbw $3,%\r\()1,%\r\()2,%\r\()3
vpcompressd %\r\()1,(%rax){%k1}
vexpandpd (%rax),%\r\()1{%k1}
vpblendmb %\r\()1,%\r\()2,%\r\()3{%k1}
vpbroadcastd %eax,%\r\()1
vpscatterdd %\r\()1,(%rax,%\r\()2,4){%k1}
vpgatherdd 4(%rax,%\r\()20,4),%\r\()1{%k1}
.endr
vaddps {rn-sae},%zmm1,%zmm2,%zmm3
vaddpd (%rax){1to8},%zmm2,%zmm3
vmaxps {sae},%zmm1,%zmm2,%zmm3
vcvtps2ph $3,%zmm1,(%rax)
vcvtph2ps (%rax),%zmm1
vpmovqb %zmm1,(%rax)
vpmovuswb %ymm1,%xmm2
vextractf64x4 $1,%zmm1,%ymm2
vinserti32x8 $1,%ymm1,%zmm2,%zmm3
vshuff64x2 $1,%zmm1,%zmm2,%zmm3
vbroadcasti64x4 (%rax),%zmm1
vcvttsd2usi %xmm1,%rax
vcvtusi2ss %eax,%xmm1,%xmm2
vmovd %eax,%xmm17
vmovq (%rax),%xmm17
vpextrd $1,%xmm17,%eax
vpinsrb $1,%eax,%xmm17,%xmm2
vscalefsd %xmm1,%xmm2,%xmm3
vgetmantss $3,%xmm1,%xmm2,%xmm3
vreducesd $3,%xmm1,%xmm2,%xmm3
vrsqrt14sd %xmm1,%xmm2,%xmm3
vpbroadcastmb2q %k1,%zmm1

needs v1.aes,aes
.irp op,aesenc,aesenclast,aesdec,aesdeclast,aesimc
\op %xmm1,%xmm2
\op 8(%rip),%xmm9
.endr
aeskeygenassist $3,%xmm1,%xmm2
needs v3.aes,avx,aes
.irp op,vaesenc,vaesenclast,vaesdec,vaesdeclast
\op %xmm1,%xmm2,%xmm3
\op 8(%rip),%xmm9,%xmm3
.endr
vaesimc %xmm1,%xmm2
vaeskeygenassist $3,(%rax),%xmm2
needs v3.vaes,avx,vaes
.irp op,vaesenc,vaesenclast,vaesdec,vaesdeclast
\op %ymm1,%ymm2,%ymm3
.endr
needs v4.vaes,avx512f,avx512vl,vaes
.irp op,vaesenc,vaesenclast,vaesdec,vaesdeclast
\op %zmm1,%zmm2,%zmm3
\op (%rax),%ymm20,%ymm3
\op %xmm17,%xmm2,%xmm3
.endr
needs v1.pclmulqdq,pclmul
pclmulqdq $1,%xmm1,%xmm2
pclmulhqhqdq (%rax),%xmm2
needs v3.pclmulqdq,avx,pclmul
vpclmulqdq $1,%xmm1,%xmm2,%xmm3
needs v3.vpclmulqdq,avx,vpclmulqdq
vpclmulqdq $1,%ymm1,%ymm2,%ymm3
needs v4.vpclmulqdq,avx512f,avx512vl,vpclmulqdq
vpclmulqdq $1,%zmm1,%zmm2,%zmm3
vpclmulqdq $1,%xmm1,%xmm2,%xmm23
needs v1.gfni,gfni
gf2p8mulb %xmm1,%xmm2
gf2p8affineqb $3,(%rax),%xmm2
gf2p8affineinvqb $3,%xmm1,%xmm2
needs v3.gfni,avx,gfni
vgf2p8mulb %ymm1,%ymm2,%ymm3
vgf2p8affineqb $3,(%rax),%xmm2,%xmm3
needs v4.gfni,avx512f,avx512vl,gfni
vgf2p8mulb %zmm1,%zmm2,%zmm3{%k1}
vgf2p8affineinvqb $3,(%rax){1to8},%zmm2,%zmm3
needs v1.sha_ni,sha
.irp op,sha1nexte,sha1msg1,sha1msg2,sha256msg1,sha256msg2
\op %xmm1,%xmm2
\op (%rax),%xmm9
.endr
sha1rnds4 $3,%xmm1,%xmm2
sha256rnds2 %xmm0,%xmm1,%xmm2
needs v1.kl,kl
aesenc128kl (%rax),%xmm1
aesdec256kl 8(%rax),%xmm1
encodekey128 %eax,%ebx
loadiwkey %xmm1,%xmm2
needs v1.widekl,widekl
aesencwide128kl (%rax)
aesdecwide256kl (%rax)

needs v3.avx_vnni,avx_vnni
.irp op,vpdpbusd,vpdpbusds,vpdpwssd,vpdpwssds
{vex} \op %ymm1,%ymm2,%ymm3
{vex} \op (%rax),%xmm2,%xmm3
.endr
needs v3.avx_vnni_int8,avx_vnni_int8
.irp op,vpdpbssd,vpdpbssds,vpdpbsud,vpdpbsuds,vpdpbuud,vpdpbuuds
\op %ymm1,%ymm2,%ymm3
.endr
needs v3.avx_ifma,avx_ifma
{vex} vpmadd52luq %ymm1,%ymm2,%ymm3
{vex} vpmadd52huq (%rax),%xmm2,%xmm3
needs v3.avx_ne_convert,avx_ne_convert
{vex} vcvtneps2bf16 %xmm1,%xmm2
vcvtneebf162ps (%rax),%ymm1
vcvtneobf162ps (%rax),%ymm1
vcvtneeph2ps (%rax),%ymm1
vcvtneoph2ps (%rax),%ymm1
vbcstnebf162ps (%rax),%ymm1
vbcstnesh2ps (%rax),%ymm1
needs v3.cmpccxadd,cmpccxadd
cmpbexadd %eax,%ebx,(%rcx)
cmpnzxadd %rax,%rbx,8(%rcx)
needs v4.avx512_vnni,avx512_vnni,avx512vl
.irp op,vpdpbusd,vpdpbusds,vpdpwssd,vpdpwssds
\op %zmm1,%zmm2,%zmm3
{evex} \op (%rax),%xmm2,%xmm3
.endr
needs v4.avx512_bf16,avx512_bf16,avx512vl
vdpbf16ps %zmm1,%zmm2,%zmm3
vcvtne2ps2bf16 (%rax),%ymm2,%ymm3
vcvtneps2bf16 %zmm1,%ymm2
needs v4.avx512_bitalg,avx512_bitalg,avx512vl
vpopcntb %zmm1,%zmm2
vpopcntw (%rax),%ymm2{%k1}
vpshufbitqmb %xmm1,%xmm2,%k1
needs v4.avx512_vpopcntdq,avx512_vpopcntdq,avx512vl
vpopcntd %zmm1,%zmm2
vpopcntq (%rax){1to2},%xmm2
needs v4.avx512vbmi,avx512vbmi,avx512vl
.irp op,vpermb,vpermi2b,vpermt2b,vpmultishiftqb
\op %zmm1,%zmm2,%zmm3
\op (%rax),%xmm2,%xmm3
.endr
needs v4.avx512_vbmi2,avx512_vbmi2,avx512vl
vpcompressb %zmm1,(%rax){%k1}
vpexpandw (%rax),%ymm1
.irp s,w,d,q
vpshldv\s %zmm1,%zmm2,%zmm3
vpshrd\s $3,%xmm1,%xmm2,%xmm3
.endr
needs v4.avx512ifma,avx512ifma,avx512vl
vpmadd52luq %zmm1,%zmm2,%zmm3
vpmadd52huq (%rax),%ymm22,%ymm3
needs v4.avx512_vp2intersect,avx512_vp2intersect,avx512vl
vp2intersectd %zmm1,%zmm2,%k2
vp2intersectq (%rax),%ymm2,%k2
needs v4.avx512er,avx512er
vexp2ps %zmm1,%zmm2
vrcp28sd %xmm1,%xmm2,%xmm3
vrsqrt28pd (%rax),%zmm2
needs v4.avx512pf,avx512pf
vgatherpf0dps (%rax,%zmm1,4){%k1}
vscatterpf1qpd (%rax,%zmm1,8){%k1}
needs v4.avx512_4fmaps,avx512_4fmaps
v4fmaddps (%rax),%zmm4,%zmm1
v4fnmaddss (%rax),%xmm4,%xmm1
needs v4.avx512_4vnniw,avx512_4vnniw
vp4dpwssd (%rax),%zmm4,%zmm1
vp4dpwssds (%rax),%zmm4,%zmm1
needs v4.avx512_fp16,avx512_fp16,avx512vl
.irp op,vaddph,vmulph,vmaxph,vfmadd213ph,vfmaddcph,vfcmulcph,vscalefph
\op %zmm5,%zmm6,%zmm7
\op 8(%rax),%xmm6,%xmm7
.endr
vaddsh %xmm1,%xmm2,%xmm3
vsqrtsh (%rax),%xmm2,%xmm3
vcmpph $3,%zmm1,%zmm2,%k1
vrndscaleph $3,%zmm1,%zmm2
vfpclasssh $3,%xmm1,%k1
vgetmantph $3,%ymm1,%ymm2
vcvtph2psx %ymm1,%zmm2
vcvtps2phx %zmm1,%ymm2
vcvtph2w %zmm1,%zmm2
vcvtuw2ph %zmm1,%zmm2
vcvtsi2sh %rax,%xmm1,%xmm2
vcvttsh2usi %xmm1,%eax
vcvtsh2sd %xmm1,%xmm2,%xmm3
vcomish %xmm1,%xmm2
vmovsh (%rax),%xmm1
vmovw %eax,%xmm1
vmovw %xmm1,8(%rsp)

needs v3.amx_tile,amx_tile
ldtilecfg (%rax)
sttilecfg 8(%rax)
tileloadd (%rax,%rbx,1),%tmm1
tileloaddt1 8(%rax,%rbx,2),%tmm1
tilestored %tmm1,(%rax,%rbx,1)
tilezero %tmm3
tilerelease
needs v3.amx_int8,amx_int8
tdpbssd %tmm1,%tmm2,%tmm3
tdpbuud %tmm1,%tmm2,%tmm3
needs v3.amx_bf16,amx_bf16
tdpbf16ps %tmm1,%tmm2,%tmm3
needs v3.amx_fp16,amx_fp16
tdpfp16ps %tmm1,%tmm2,%tmm3

needs v1.rdrand,rdrnd
rdrand %ax
rdrand %r9
needs v1.rdseed,rdseed
rdseed %ax
rdseed %r9
needs v1.rdpid,rdpid
rdpid %rax
needs v1.adx,adx
adcx %eax,%ebx
adcx (%rax),%r9
adox %rax,%rbx
needs v1.fsgsbase,fsgsbase
rdfsbase %eax
rdgsbase %rax
wrfsbase %rax
wrgsbase %r9
needs v1.rtm,rtm
xbegin .+6
xabort $3
xend
xtest
needs v1.pku,ospke
rdpkru
wrpkru
needs v1.sgx,se1
enclu
needs v1.clflushopt,clflushopt
clflushopt 8(%rax)
needs v1.clwb,clwb
clwb 8(%rax)
needs v1.movdiri,movdiri
movdiri %rax,(%rbx)
needs v1.movdir64b,movdir64b
movdir64b (%rax),%rbx
needs v1.enqcmd,enqcmd
enqcmd (%rax),%rbx
needs v1.waitpkg,waitpkg
umonitor %rax
umwait %eax
tpause %eax
needs v1.serialize,serialize
serialize
needs v1.tsxldtrk,tsxldtrk
xsusldtrk
xresldtrk
needs v1.uintr,uintr
uiret
clui
stui
testui
senduipi %rax
needs v1.ptwrite,ptwrite
ptwrite %eax
ptwriteq (%rax)
needs v1.hreset,hreset
hreset $3
needs v1.raoint,rao_int
aadd %eax,(%rbx)
aand %rax,(%rbx)
aor %eax,(%rbx)
axor %rax,(%rbx)
needs v1.xsaveopt,xsaveopt
xsaveopt64 (%rax)
needs v1.xsavec,xsavec
xsavec (%rax)
needs v1.xsaves,xsaves
xsaves64 (%rax)
xrstors (%rax)
needs v1.clzero,clzero
clzero
needs v1.mwaitx,mwaitx
monitorx
mwaitx
needs v1.rdpru,rdpru
rdpru
needs v1.3dnow,3dnow
femms
.irp op,pavgusb,pf2id,pfacc,pfadd,pfcmpeq,pfcmpge,pfmax,pfmul,pfrcp,pfrcpit1,pfrsqrt,pfsub,pfsubr,pi2fd,pmulhrw
\op %mm1,%mm2
\op 8(%rax,%rbx),%mm2
.endr
needs v1.3dnowext,3dnowa
.irp op,pf2iw,pfnacc,pfpnacc,pi2fw,pswapd
\op 8(%rip),%mm2
.endr
needs v1.sse4a,sse4a
extrq $3,$4,%xmm1
extrq %xmm1,%xmm2
insertq $3,$4,%xmm1,%xmm2
insertq %xmm1,%xmm2
movntss %xmm1,(%rax)
movntsd %xmm1,8(%rsp)
needs v3.fma4,fma4
.irp op,vfmaddps,vfmaddsd,vfmsubpd,vfnmaddss,vfnmsubps,vfmaddsubpd,vfmsubaddps
\op %xmm1,%xmm2,%xmm3,%xmm4
\op 8(%rax),%xmm2,%xmm3,%xmm4
\op %xmm2,8(%rip),%xmm3,%xmm4
.endr
needs v3.xop,xop
.irp op,vprotb,vprotd,vpshaw,vpshlq
\op %xmm1,%xmm2,%xmm3
\op (%rax),%xmm2,%xmm3
.endr
vprotd $3,%xmm1,%xmm2
vpcmov %ymm1,%ymm2,%ymm3,%ymm4
vpperm %xmm1,(%rax),%xmm3,%xmm4
vpmacsdd %xmm1,%xmm2,%xmm3,%xmm4
vpcomltb %xmm1,%xmm2,%xmm3
vphaddbw %xmm1,%xmm2
vfrczpd (%rax),%ymm2
vpermil2ps $1,%ymm1,%ymm2,%ymm3,%ymm4
needs v1.tbm,tbm
bextr $0x12345678,%eax,%ebx
bextr $0x12345678,8(%rax),%r9
blcfill %eax,%ebx
tzmsk (%rax),%r9
needs v1.lwp,lwp
llwpcb %rax
lwpins $0x12345678,%eax,%rbx
needs v1.rng,padlock
xstore
needs v1.ace,padlock
xcryptecb
xcryptctr
needs v1.pmm,padlock
montmul
needs v1.phe,padlock
xsha256
