// glibc has sinpi and cospi since 2.41 and rsqrt since 2.42, each with noexcept. CUDA's
// declarations of these functions must then have it too.
#if defined(__GLIBC_PREREQ)
#if __GLIBC_PREREQ(2, 41)
#define DSBUILD_NOTHROW_PI noexcept(true)
#endif
#if __GLIBC_PREREQ(2, 42)
#define DSBUILD_NOTHROW_RSQRT noexcept(true)
#endif
#endif
#ifndef DSBUILD_NOTHROW_PI
#define DSBUILD_NOTHROW_PI
#endif
#ifndef DSBUILD_NOTHROW_RSQRT
#define DSBUILD_NOTHROW_RSQRT
#endif
