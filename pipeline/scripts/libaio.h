/* Linux's asynchronous I/O as DeepSpeed's async_io and gds ask libaio for it. It stands in for libaio, of which they
   use six functions around system calls: a wheel needs no library that a node may lack, a build no package of the
   distribution. Layouts and numbers: linux/aio_abi.h, for
   little-endian machines of 64 bits. */
#ifndef DSBUILD_LIBAIO_H
#define DSBUILD_LIBAIO_H

#include <signal.h>
#include <time.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct io_context* io_context_t; /* the kernel's number of a queue */

struct io_iocb_common {
    void* buf;
    unsigned long nbytes;
    long long offset;
    long long reserved;
    unsigned flags;
    unsigned resfd;
};

struct iocb {
    void* data;
    unsigned key;
    unsigned aio_rw_flags;
    short aio_lio_opcode;
    short aio_reqprio;
    int aio_fildes;
    union {
        struct io_iocb_common c;
    } u;
};

struct io_event {
    void* data;
    struct iocb* obj;
    unsigned long res;
    unsigned long res2;
};

/* Each returns a negative error number in place of setting errno, as libaio's do. */
int io_queue_init(int maxevents, io_context_t* queue);
int io_queue_release(io_context_t queue);
int io_submit(io_context_t queue, long count, struct iocb** requests);
int io_pgetevents(io_context_t queue, long least, long most, struct io_event* events, struct timespec* timeout, sigset_t* mask);
void io_prep_pread(struct iocb* request, int fd, void* buf, size_t count, long long offset);
void io_prep_pwrite(struct iocb* request, int fd, void* buf, size_t count, long long offset);

#ifdef __cplusplus
}
#endif
#endif
