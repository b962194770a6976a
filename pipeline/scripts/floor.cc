// Definitions of symbols that libraries got later than those that an extension may
// need (floor.py). Each is compiled by itself, hidden, where an extension asks for it.
// They do what the libraries' own do, by means of what older ones have.
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <exception>
#include <new>
#include <pthread.h>
#include <semaphore.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define NAMED(name) __asm__(#name)

// glibc 2.32. Zero says that there may be several threads, which is always safe.
#ifdef NEED___libc_single_threaded
extern "C" char floor_single_threaded NAMED(__libc_single_threaded);
char floor_single_threaded = 0;
#endif

// glibc 2.33; before, these were inline and called the functions with a version of the structure.
#ifdef __aarch64__ // glibc has it since 2.17, with one form of the structure
#define STAT_VERSION 0
#define FIRST "@GLIBC_2.17"
#define FIRST_AT FIRST
#else
#define STAT_VERSION 1
#define FIRST "@GLIBC_2.2.5"
#define FIRST_AT "@GLIBC_2.4"
#endif
#define STAT(function) __asm__(".symver " #function "," #function FIRST)
#ifdef NEED_stat
extern "C" int __xstat(int, const char *, void *);
STAT(__xstat);
extern "C" int floor_stat(const char *path, void *to) NAMED(stat);
int floor_stat(const char *path, void *to) { return __xstat(STAT_VERSION, path, to); }
#endif
#ifdef NEED_stat64
extern "C" int __xstat64(int, const char *, void *);
STAT(__xstat64);
extern "C" int floor_stat64(const char *path, void *to) NAMED(stat64);
int floor_stat64(const char *path, void *to) { return __xstat64(STAT_VERSION, path, to); }
#endif
#ifdef NEED_lstat
extern "C" int __lxstat(int, const char *, void *);
STAT(__lxstat);
extern "C" int floor_lstat(const char *path, void *to) NAMED(lstat);
int floor_lstat(const char *path, void *to) { return __lxstat(STAT_VERSION, path, to); }
#endif
#ifdef NEED_lstat64
extern "C" int __lxstat64(int, const char *, void *);
STAT(__lxstat64);
extern "C" int floor_lstat64(const char *path, void *to) NAMED(lstat64);
int floor_lstat64(const char *path, void *to) { return __lxstat64(STAT_VERSION, path, to); }
#endif
#ifdef NEED_fstat
extern "C" int __fxstat(int, int, void *);
STAT(__fxstat);
extern "C" int floor_fstat(int file, void *to) NAMED(fstat);
int floor_fstat(int file, void *to) { return __fxstat(STAT_VERSION, file, to); }
#endif
#ifdef NEED_fstat64
extern "C" int __fxstat64(int, int, void *);
STAT(__fxstat64);
extern "C" int floor_fstat64(int file, void *to) NAMED(fstat64);
int floor_fstat64(int file, void *to) { return __fxstat64(STAT_VERSION, file, to); }
#endif
#ifdef NEED_fstatat
extern "C" int __fxstatat(int, int, const char *, void *, int);
__asm__(".symver __fxstatat,__fxstatat" FIRST_AT);
extern "C" int floor_fstatat(int at, const char *path, void *to, int flags) NAMED(fstatat);
int floor_fstatat(int at, const char *path, void *to, int flags) { return __fxstatat(STAT_VERSION, at, path, to, flags); }
#endif
#ifdef NEED_fstatat64
extern "C" int __fxstatat64(int, int, const char *, void *, int);
__asm__(".symver __fxstatat64,__fxstatat64" FIRST_AT);
extern "C" int floor_fstatat64(int at, const char *path, void *to, int flags) NAMED(fstatat64);
int floor_fstatat64(int at, const char *path, void *to, int flags) { return __fxstatat64(STAT_VERSION, at, path, to, flags); }
#endif

// glibc 2.30.
#ifdef NEED_gettid
extern "C" pid_t floor_gettid() NAMED(gettid);
pid_t floor_gettid() { return pid_t(syscall(SYS_gettid)); }
#endif

// glibc 2.30: waiting until a time of another clock. It becomes a time of the clock that the
// older functions take; libstdc++ did the same before.
#if defined(NEED_pthread_cond_clockwait) || defined(NEED_pthread_mutex_clocklock) || defined(NEED_sem_clockwait)
static timespec realtime(clockid_t clock, const timespec *until) {
    timespec there, here;
    clock_gettime(clock, &there);
    clock_gettime(CLOCK_REALTIME, &here);
    timespec out = {here.tv_sec + until->tv_sec - there.tv_sec, here.tv_nsec + until->tv_nsec - there.tv_nsec};
    for (; out.tv_nsec < 0; out.tv_nsec += 1000000000) out.tv_sec--;
    for (; out.tv_nsec >= 1000000000; out.tv_nsec -= 1000000000) out.tv_sec++;
    return out;
}
#endif
#ifdef NEED_pthread_cond_clockwait
extern "C" int floor_cond_clockwait(pthread_cond_t *, pthread_mutex_t *, clockid_t, const timespec *) NAMED(pthread_cond_clockwait);
int floor_cond_clockwait(pthread_cond_t *condition, pthread_mutex_t *mutex, clockid_t clock, const timespec *until) {
    timespec at = realtime(clock, until);
    return pthread_cond_timedwait(condition, mutex, &at);
}
#endif
#ifdef NEED_pthread_mutex_clocklock
extern "C" int floor_mutex_clocklock(pthread_mutex_t *, clockid_t, const timespec *) NAMED(pthread_mutex_clocklock);
int floor_mutex_clocklock(pthread_mutex_t *mutex, clockid_t clock, const timespec *until) {
    timespec at = realtime(clock, until);
    return pthread_mutex_timedlock(mutex, &at);
}
#endif
#ifdef NEED_sem_clockwait
extern "C" int floor_sem_clockwait(sem_t *, clockid_t, const timespec *) NAMED(sem_clockwait);
int floor_sem_clockwait(sem_t *semaphore, clockid_t clock, const timespec *until) {
    timespec at = realtime(clock, until);
    return sem_timedwait(semaphore, &at);
}
#endif

// libstdc++ of gcc 14 (CXXABI_1.3.15): an exception leaves a function that is noexcept.
#ifdef NEED___cxa_call_terminate
extern "C" void *__cxa_begin_catch(void *) noexcept;
extern "C" void floor_call_terminate(void *) noexcept NAMED(__cxa_call_terminate);
void floor_call_terminate(void *exception) noexcept {
    if (exception) __cxa_begin_catch(exception);
    std::terminate();
}
#endif

// libstdc++ of gcc 11 (GLIBCXX_3.4.29).
#ifdef NEED__ZSt28__throw_bad_array_new_lengthv
extern "C" void floor_throw_bad_array_new_length() NAMED(_ZSt28__throw_bad_array_new_lengthv);
void floor_throw_bad_array_new_length() { throw std::bad_array_new_length(); }
#endif

// libstdc++ of gcc 12 (GLIBCXX_3.4.30): an assertion of its headers failed.
#ifdef NEED__ZSt21__glibcxx_assert_failPKciS0_S0_
extern "C" void floor_assert_fail(const char *, int, const char *, const char *) noexcept NAMED(_ZSt21__glibcxx_assert_failPKciS0_S0_);
void floor_assert_fail(const char *file, int line, const char *function, const char *condition) noexcept {
    if (file && function && condition) fprintf(stderr, "%s:%d: %s: Assertion '%s' failed.\n", file, line, function, condition);
    abort();
}
#endif
