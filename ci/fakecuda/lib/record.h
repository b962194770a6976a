// The record: what a program asked of CUDA, one line a call, in the file that FAKECUDA_RECORD names.
//
//   call NAME …   a call that changes something or runs something
//   ask NAME …    a question; two programs may ask differently
//   case, result, error   lines of the scenarios (scenarios/harness.py)
#ifndef FAKECUDA_RECORD_H
#define FAKECUDA_RECORD_H
#define EXPORT __attribute__((visibility("default")))

// fakecuda_line appends a line.
EXPORT void fakecuda_line(const char *text);
// fakecuda_linef formats a line of at most 1,000 bytes.
__attribute__((format(printf, 1, 2))) EXPORT void fakecuda_linef(const char *format, ...);
// fakecuda_missing records the call of a function that the stand-in lacks, tells it on standard error,
// and returns status.
EXPORT int fakecuda_missing(const char *name, int status);
// fakecuda_stream names a stream by its number and device, which are the same in each run.
struct CUstream_st;
EXPORT const char *fakecuda_stream(struct CUstream_st *stream);
// fakecuda_has_context says whether a device is in use (cuDevicePrimaryCtxGetState).
EXPORT int fakecuda_has_context(int device);
#endif
