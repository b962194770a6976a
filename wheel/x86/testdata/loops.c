// What compilers make of ordinary code, differently for each level: loops they
// can vectorise, bit counts, byte swaps, conversions, jump tables, atomics.
#include <math.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

void axpy(float *restrict y, const float *restrict x, float a, size_t n) {
	for (size_t i = 0; i < n; i++)
		y[i] += a * x[i];
}

double dot(const double *x, const double *y, size_t n) {
	double s = 0;
	for (size_t i = 0; i < n; i++)
		s = fma(x[i], y[i], s);
	return s;
}

void blend(float *restrict y, const float *restrict x, const int *restrict c, size_t n) {
	for (size_t i = 0; i < n; i++)
		if (c[i] > 3)
			y[i] = sqrtf(x[i]) / (1 + y[i]);
}

void gather(double *restrict y, const double *restrict x, const int *restrict at, size_t n) {
	for (size_t i = 0; i < n; i++)
		y[i] = x[at[i]];
}

int32_t sum8(const int8_t *x, const uint8_t *y, size_t n) {
	int32_t s = 0;
	for (size_t i = 0; i < n; i++)
		s += x[i] * y[i];
	return s;
}

void clamp16(int16_t *x, size_t n) {
	for (size_t i = 0; i < n; i++)
		x[i] = x[i] < -100 ? -100 : x[i] > 100 ? 100 : x[i] * 3;
}

void shift64(uint64_t *x, const uint64_t *by, size_t n) {
	for (size_t i = 0; i < n; i++)
		x[i] = (x[i] << (by[i] & 63)) ^ (x[i] >> 7);
}

void narrow(_Float16 *restrict y, const float *restrict x, size_t n) {
	for (size_t i = 0; i < n; i++)
		y[i] = (_Float16)x[i];
}

void rounded(double *x, size_t n) {
	for (size_t i = 0; i < n; i++)
		x[i] = floor(x[i]) + trunc(x[i] * 0.5);
}

uint64_t bits(const uint64_t *x, size_t n) {
	uint64_t s = 0;
	for (size_t i = 0; i < n; i++) {
		s += __builtin_popcountll(x[i]);
		if (x[i])
			s ^= __builtin_clzll(x[i]) + __builtin_ctzll(x[i]);
		s += x[i] & -x[i];
		s ^= ~x[i] & (x[i] - 1);
	}
	return s;
}

uint64_t swapped(const char *p) {
	uint64_t x;
	uint32_t y;
	memcpy(&x, p, 8);
	memcpy(&y, p + 8, 4);
	return __builtin_bswap64(x) + __builtin_bswap32(y);
}

void store_swapped(char *p, uint64_t x) {
	x = __builtin_bswap64(x);
	memcpy(p, &x, 8);
}

long double horner(const long double *c, size_t n, long double x) {
	long double s = 0;
	for (size_t i = 0; i < n; i++)
		s = s * x + c[i];
	return isnan(s) ? (long double)(int64_t)x : s;
}

int choose(int k, int x) {
	switch (k) {
	case 0: return x * 3;
	case 1: return x / 7;
	case 2: return x << 4;
	case 3: return -x;
	case 4: return x % 10;
	case 5: return x ^ 0x12345678;
	case 6: return ~x;
	case 7: return x > 0 ? x : 100;
	default: return 0;
	}
}

struct big { char bytes[777]; };
void copy(struct big *to, const struct big *from) { *to = *from; }
void zero(struct big *b) { memset(b, 0, sizeof *b); }

uint64_t constant(uint64_t x) { return x * 0x9e3779b97f4a7c15u + 0x123456789abcdef0u; }
unsigned __int128 wide(uint64_t a, uint64_t b) { return (unsigned __int128)a * b + a; }
uint64_t divide(uint64_t a, uint64_t b) { return a / b + a % 1000; }
uint64_t rotate(uint64_t x, int k) { return x << k | x >> (64 - k); }

_Thread_local int counter;
int count(atomic_long *total, long x) {
	atomic_fetch_add(total, x);
	long was = x;
	atomic_compare_exchange_strong(total, &was, x + 1);
	return counter++;
}

#ifdef __GCC_HAVE_SYNC_COMPARE_AND_SWAP_16
_Bool exchange(__int128 *p, __int128 was, __int128 is) {
	return __sync_bool_compare_and_swap(p, was, is);
}
#endif
