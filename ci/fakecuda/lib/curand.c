// cuRAND without a GPU (libcurand.so.10): generators, and a record of their seeds.
#include "record.h"

#include <curand.h>
#include <stdlib.h>

int curand_missing(const char *name) { return fakecuda_missing(name, CURAND_STATUS_NOT_INITIALIZED); }

EXPORT curandStatus_t curandCreateGenerator(curandGenerator_t *generator, curandRngType_t kind)
{
    *generator = calloc(1, 16);
    fakecuda_linef("call curandCreateGenerator %d", (int)kind);
    return CURAND_STATUS_SUCCESS;
}
EXPORT curandStatus_t curandSetPseudoRandomGeneratorSeed(curandGenerator_t generator, unsigned long long seed)
{
    (void)generator;
    fakecuda_linef("call curandSetSeed %llu", seed);
    return CURAND_STATUS_SUCCESS;
}
