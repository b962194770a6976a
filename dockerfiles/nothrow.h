#if defined(__GLIBC_PREREQ)
#if __GLIBC_PREREQ(2, 41)
#define DSBUILD_NOTHROW noexcept(true)
#endif
#endif
#ifndef DSBUILD_NOTHROW
#define DSBUILD_NOTHROW
#endif
