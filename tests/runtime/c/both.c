#include "plus.h"
#include "minus.h"
#include <stdio.h>
int main(void) {
  float x[64] = {5}, y[64];
  plus_context *p = plus_context_create(1);
  minus_context *m = minus_context_create(1);
  if (!p || !m || plus_call_apply(p, x, y)) return 1;
  printf("%g ", (double)y[0]);
  if (minus_call_apply(m, x, y)) return 1;
  printf("%g ", (double)y[0]);
  /* a context of the other library, and a destroyed one, are refused */
  printf("%d ", plus_call_apply((plus_context *)(void *)m, x, y));
  plus_context_destroy(p);
  printf("%d %s", plus_call_apply(p, x, y), plus_last_error(p));
  return minus_context_destroy(m);
}
