// A function for each extension that no level holds, each compiled for just the
// level it builds on.
#include <stdint.h>
#include <x86intrin.h>

#define FOR(t) __attribute__((target(t)))

FOR("aes") __m128i aes(__m128i x, __m128i k) { return _mm_aesenclast_si128(_mm_aesenc_si128(x, k), _mm_aeskeygenassist_si128(k, 3)); }
FOR("pclmul") __m128i pclmul(__m128i x, __m128i k) { return _mm_clmulepi64_si128(x, k, 1); }
FOR("sha") __m128i sha(__m128i x, __m128i k) { return _mm_sha256rnds2_epu32(x, _mm_sha1rnds4_epu32(x, k, 2), k); }
FOR("gfni") __m128i gfni(__m128i x, __m128i k) { return _mm_gf2p8mul_epi8(x, k); }
FOR("gfni,avx2") __m256i gfni256(__m256i x, __m256i k) { return _mm256_gf2p8mul_epi8(x, k); }
FOR("aes,avx2") __m128i vex_aes(__m128i x, const __m128i *k) { return _mm_aesdec_si128(x, *k); }
FOR("vaes,avx2") __m256i vaes(__m256i x, __m256i k) { return _mm256_aesenc_epi128(x, k); }
FOR("vaes,avx512f") __m512i vaes512(__m512i x, __m512i k) { return _mm512_aesenc_epi128(x, k); }
FOR("vpclmulqdq,avx2") __m256i vpclmul(__m256i x, __m256i k) { return _mm256_clmulepi64_epi128(x, k, 1); }
FOR("avxvnni") __m256i vnni(__m256i s, __m256i x, __m256i y) { return _mm256_dpbusd_avx_epi32(s, x, y); }
FOR("avx512vnni") __m512i vnni512(__m512i s, __m512i x, __m512i y) { return _mm512_dpbusd_epi32(s, x, y); }
FOR("avx512bf16") __m512 bf16(__m512 s, __m512bh x, __m512bh y) { return _mm512_dpbf16_ps(s, x, y); }
FOR("avx512fp16") __m512h fp16(__m512h s, __m512h x, __m512h y) { return _mm512_fmadd_ph(s, x, y); }
FOR("avx512vbmi") __m512i vbmi(__m512i x, __m512i y) { return _mm512_permutexvar_epi8(x, y); }
FOR("avx512vbmi2") __m512i vbmi2(__m512i x, __m512i y) { return _mm512_shldv_epi32(x, y, y); }
FOR("avx512ifma") __m512i ifma(__m512i s, __m512i x, __m512i y) { return _mm512_madd52lo_epu64(s, x, y); }
FOR("avx512bitalg") __m512i bitalg(__m512i x) { return _mm512_popcnt_epi8(x); }
FOR("avx512vpopcntdq") __m512i popcnt(__m512i x) { return _mm512_popcnt_epi64(x); }
FOR("avx512f,avx512dq,avx512bw") __mmask64 masks(__m512i x, __m512i y, __mmask64 k) {
	return _kadd_mask64(_mm512_mask_cmpgt_epi8_mask(k, x, y), _knot_mask64(k));
}
FOR("amx-tile,amx-int8,amx-bf16") void amx(const void *p, void *q) {
	_tile_loadconfig(p);
	_tile_loadd(1, p, 64);
	_tile_loadd(2, p, 64);
	_tile_zero(3);
	_tile_dpbssd(3, 1, 2);
	_tile_dpbf16ps(3, 1, 2);
	_tile_stored(3, q, 64);
	_tile_release();
}
FOR("rdrnd,rdseed") int rnd(unsigned *x, unsigned long long *y) { return _rdrand32_step(x) + _rdseed64_step(y); }
FOR("rtm") int rtm(int *x) {
	if (_xbegin() != _XBEGIN_STARTED)
		return 0;
	++*x;
	_xend();
	return 1;
}
FOR("fsgsbase") uint64_t base(void) { return _readfsbase_u64(); }
FOR("pku") unsigned pku(void) { return _rdpkru_u32(); }
FOR("clwb,clflushopt") void flush(void *p) { _mm_clwb(p); _mm_clflushopt(p); }
FOR("movdiri,movdir64b") void direct(void *p, const void *q) { _directstoreu_u64(p, 1); _movdir64b(p, q); }
FOR("waitpkg") unsigned wait(void) { return _tpause(0, 1); }
FOR("serialize") void serialize(void) { _serialize(); }
FOR("rdpid") unsigned pid(void) { return _rdpid_u32(); }
FOR("xsavec") void save(void *p) { _xsavec64(p, -1); }
FOR("xsave") uint64_t xcr0(void) { return _xgetbv(0); }
FOR("fma4") __m128 fma4(__m128 x, __m128 y, __m128 z) { return _mm_macc_ps(x, y, z); }
FOR("xop") __m128i xop(__m128i x, __m128i y) { return _mm_rot_epi32(x, y); }
FOR("tbm") unsigned tbm(unsigned x) { return __blcfill_u32(x); }
FOR("sse4a") void sse4a(double *p, __m128d x) { _mm_stream_sd(p, x); }
FOR("sse4.2,crc32") unsigned crc(unsigned c, uint64_t x) { return _mm_crc32_u64(c, x); }
FOR("sahf") int ids(void) { unsigned a, b, c, d; __asm__ volatile("cpuid" : "=a"(a), "=b"(b), "=c"(c), "=d"(d) : "0"(0)); return b; }
uint64_t ticks(void) { unsigned x; return __rdtscp(&x); }
