// The lock that stands in for Python's global interpreter lock (GIL).
//
// DeepSpeed's bindings count on the GIL: pybind11 holds it while a function runs, unless its
// binding releases it. torch's dispatcher releases it before each call. So each library has a lock
// of its own, and a call holds it from after its arguments are read until its result is written
// (kernel_of in registry.h), unless the binding has call_guard<gil_scoped_release>. A thread
// that waits for the lock never holds the GIL, and one that holds the lock may ask for the GIL.
#pragma once
#include <pthread.h>

namespace dsbuild {

class Lock {
public:
    // Taken again by the thread that holds it, it counts.
    static void take()
    {
        if (depth_++ == 0) { pthread_mutex_lock(&mutex_); }
    }
    static void give()
    {
        if (--depth_ == 0) { pthread_mutex_unlock(&mutex_); }
    }
    static bool held() { return depth_ > 0; }

    // give_all and take_again let others run while this thread waits for something else.
    static int give_all()
    {
        const int depth = depth_;
        while (depth_ > 0) { give(); }
        return depth;
    }
    static void take_again(int depth)
    {
        while (depth-- > 0) { take(); }
    }

    // A process made by fork has one thread, and no other that would give the lock back.
    static void renew_after_fork()
    {
        pthread_atfork(nullptr, nullptr, [] {
            if (!held()) { mutex_ = PTHREAD_MUTEX_INITIALIZER; }
        });
    }

private:
    static inline pthread_mutex_t mutex_ = PTHREAD_MUTEX_INITIALIZER;
    static inline thread_local int depth_ = 0;
};

// Holding holds the lock for as long as it lives, or does nothing.
class Holding {
public:
    explicit Holding(bool wanted) : wanted_(wanted)
    {
        if (wanted_) { Lock::take(); }
    }
    ~Holding()
    {
        if (wanted_) { Lock::give(); }
    }
    Holding(const Holding&) = delete;
    Holding& operator=(const Holding&) = delete;

private:
    bool wanted_;
};

}  // namespace dsbuild
