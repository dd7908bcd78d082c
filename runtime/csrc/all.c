/* The whole runtime as one translation unit. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "pool.c"
#include "machine.c"
#include "context.c"
#include "state.c"
#include "checkpoint.c"
