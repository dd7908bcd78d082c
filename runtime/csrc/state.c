/* States and hyperparameters by name. */
#include "internal.h"

#include <string.h>

const tgrt_state *tgrt_find_state(const tgrt_library *lib, const char *name) {
  for (uint32_t i = 0; name && i < lib->num_states; ++i)
    if (strcmp(lib->states[i].name, name) == 0) return &lib->states[i];
  return NULL;
}

static int find_sized(const tgrt_library *lib, tgrt_context *ctx, const char *name, const void *array, size_t bytes, const tgrt_state **found) {
  *found = tgrt_find_state(lib, name);
  if (!*found) {
    tgrt_set_error(ctx, "no state or hyperparameter '%s'", name ? name : "(NULL)");
    return TG_ERR_ARGUMENT;
  }
  if (bytes != (*found)->bytes || (!array && bytes)) {
    tgrt_set_error(ctx, "'%s' has %llu bytes, got %llu", name, (unsigned long long)(*found)->bytes, (unsigned long long)bytes);
    return TG_ERR_ARGUMENT;
  }
  return TG_OK;
}

void *tgrt_state_data(const tgrt_library *lib, tgrt_context *ctx, const char *name, size_t *bytes) {
  if (tgrt_enter(lib, ctx)) return NULL;
  const tgrt_state *s = tgrt_find_state(lib, name);
  if (!s) tgrt_set_error(ctx, "no state or hyperparameter '%s'", name ? name : "(NULL)");
  if (s && bytes) *bytes = (size_t)s->bytes;
  tgrt_leave(ctx, TG_OK);
  return s ? ctx->states + s->offset : NULL;
}

int tgrt_state_get(const tgrt_library *lib, tgrt_context *ctx, const char *name, void *to, size_t bytes) {
  const tgrt_state *s;
  int status = tgrt_enter(lib, ctx);
  if (status) return status;
  status = find_sized(lib, ctx, name, to, bytes, &s);
  if (!status) memcpy(to, ctx->states + s->offset, bytes);
  return tgrt_leave(ctx, status);
}

int tgrt_state_set(const tgrt_library *lib, tgrt_context *ctx, const char *name, const void *from, size_t bytes) {
  const tgrt_state *s;
  int status = tgrt_enter(lib, ctx);
  if (status) return status;
  status = find_sized(lib, ctx, name, from, bytes, &s);
  if (!status) memcpy(ctx->states + s->offset, from, bytes);
  return tgrt_leave(ctx, status);
}

/* Any scalar, whatever its type: float32, float64, (u)int32, (u)int64. */
int tgrt_hyper_set(const tgrt_library *lib, tgrt_context *ctx, const char *name, double value) {
  int status = tgrt_enter(lib, ctx);
  if (status) return status;
  const tgrt_state *s = tgrt_find_state(lib, name);
  void *to = s ? ctx->states + s->offset : NULL;
  if (!s || s->ndim != 0) {
    tgrt_set_error(ctx, s ? "'%s' is not a scalar" : "no hyperparameter '%s'", name ? name : "(NULL)");
    status = TG_ERR_ARGUMENT;
  } else if (strcmp(s->dtype, "float32") == 0) {
    *(float *)to = (float)value;
  } else if (strcmp(s->dtype, "float64") == 0) {
    *(double *)to = value;
  } else if (strcmp(s->dtype, "int32") == 0) {
    *(int32_t *)to = (int32_t)value;
  } else if (strcmp(s->dtype, "uint32") == 0) {
    *(uint32_t *)to = (uint32_t)value;
  } else if (strcmp(s->dtype, "int64") == 0) {
    *(int64_t *)to = (int64_t)value;
  } else if (strcmp(s->dtype, "uint64") == 0) {
    *(uint64_t *)to = (uint64_t)value;
  } else {
    tgrt_set_error(ctx, "'%s' is %s; use the function that sets a state from memory", name, s->dtype);
    status = TG_ERR_ARGUMENT;
  }
  return tgrt_leave(ctx, status);
}
