/* The functions of libaio.h. compile.sh makes libaio.a of them. */
#include "libaio.h"

#include <errno.h>
#include <stddef.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

_Static_assert(sizeof(struct iocb) == 64 && offsetof(struct iocb, aio_lio_opcode) == 16 && offsetof(struct iocb, u) == 24, "iocb");
_Static_assert(sizeof(struct io_event) == 32 && sizeof(io_context_t) == 8, "io_event");

enum { PREAD, PWRITE };

static int result(long returned) { return returned < 0 ? -errno : (int)returned; }

int io_queue_init(int maxevents, io_context_t* queue)
{
    *queue = 0;
    return result(syscall(SYS_io_setup, maxevents, queue));
}

int io_queue_release(io_context_t queue) { return result(syscall(SYS_io_destroy, queue)); }

int io_submit(io_context_t queue, long count, struct iocb** requests) { return result(syscall(SYS_io_submit, queue, count, requests)); }

int io_pgetevents(io_context_t queue, long least, long most, struct io_event* events, struct timespec* timeout, sigset_t* mask)
{
    struct {
        sigset_t* mask;
        size_t bytes;
    } signals = {mask, _NSIG / 8};
    if (!mask) return result(syscall(SYS_io_getevents, queue, least, most, events, timeout)); /* Linux before 4.18 has no other */
    return result(syscall(SYS_io_pgetevents, queue, least, most, events, timeout, &signals));
}

static void prepare(struct iocb* request, short opcode, int fd, void* buf, size_t count, long long offset)
{
    memset(request, 0, sizeof *request);
    request->aio_lio_opcode = opcode;
    request->aio_fildes = fd;
    request->u.c.buf = buf;
    request->u.c.nbytes = count;
    request->u.c.offset = offset;
}

void io_prep_pread(struct iocb* request, int fd, void* buf, size_t count, long long offset)
{
    prepare(request, PREAD, fd, buf, count, offset);
}

void io_prep_pwrite(struct iocb* request, int fd, void* buf, size_t count, long long offset)
{
    prepare(request, PWRITE, fd, buf, count, offset);
}
