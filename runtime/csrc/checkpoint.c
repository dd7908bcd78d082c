/* States and hyperparameters to and from a safetensors file: 8 bytes of header length, a JSON header, the arrays. */
#include "internal.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const types[][2] = {{"float32", "F32"}, {"float64", "F64"},  {"float16", "F16"}, {"bfloat16", "BF16"}, {"int64", "I64"},
                                       {"int32", "I32"},   {"int16", "I16"},    {"int8", "I8"},     {"uint64", "U64"},    {"uint32", "U32"},
                                       {"uint16", "U16"},  {"uint8", "U8"},     {"bool", "BOOL"}};

static const char *type_in_file(const char *dtype) {
  for (size_t i = 0; i < sizeof types / sizeof *types; ++i)
    if (strcmp(types[i][0], dtype) == 0) return types[i][1];
  return "?";
}

/* ---- writing ---- */

static size_t write_name(FILE *file, const char *name) {
  size_t n = 2;
  if (file) fputc('"', file);
  for (; *name; ++name) {
    unsigned char c = (unsigned char)*name;
    const char *form = c < 0x20 ? "\\u%04x" : c == '"' || c == '\\' ? "\\%c" : "%c";
    n += c < 0x20 ? 6 : form[0] == '\\' ? 2 : 1;
    if (file) fprintf(file, form, c);
  }
  if (file) fputc('"', file);
  return n;
}

/* With file NULL only counts. Both ways the same bytes. */
static size_t write_header(FILE *file, const tgrt_library *lib) {
  size_t n = 0;
  uint64_t at = 0;
  char text[64];
#define PUT(...)                                                     \
  do {                                                               \
    n += (size_t)snprintf(text, sizeof text, __VA_ARGS__);           \
    if (file) fputs(text, file);                                     \
  } while (0)
  for (uint32_t i = 0; i < lib->num_states; ++i) {
    const tgrt_state *s = &lib->states[i];
    PUT(i ? "," : "{");
    n += write_name(file, s->name);
    PUT(":{\"dtype\":\"%s\",\"shape\":[", type_in_file(s->dtype));
    for (int32_t d = 0; d < s->ndim; ++d) PUT(d ? ",%lld" : "%lld", (long long)s->shape[d]);
    PUT("],\"data_offsets\":[%llu,%llu]}", (unsigned long long)at, (unsigned long long)(at + s->bytes));
    at += s->bytes;
  }
  PUT(lib->num_states ? "}" : "{}");
  while (n % 8) PUT(" ");
#undef PUT
  return n;
}

static int file_error(tgrt_context *ctx, const char *path, const char *what) {
  tgrt_set_error(ctx, "%s: %s", path, what);
  return TG_ERR_FILE;
}

int tgrt_checkpoint_save(const tgrt_library *lib, tgrt_context *ctx, const char *path) {
  int status = tgrt_enter(lib, ctx);
  if (status) return status;
  if (!path) return tgrt_leave(ctx, file_error(ctx, "(NULL)", "no file name"));
  /* A file beside it, then a rename: the old checkpoint stays whole until the new one is. */
  size_t length = strlen(path) + 5;
  char *beside = malloc(length);
  if (!beside) return tgrt_leave(ctx, TG_ERR_MEMORY);
  snprintf(beside, length, "%s.tmp", path);
  FILE *file = fopen(beside, "wb");
  int ok = file != NULL;
  if (ok) {
    uint64_t n = write_header(NULL, lib);
    for (int i = 0; i < 8; ++i) fputc((int)(n >> 8 * i & 255), file);
    write_header(file, lib);
    for (uint32_t i = 0; i < lib->num_states && ok; ++i)
      ok = fwrite(ctx->states + lib->states[i].offset, 1, (size_t)lib->states[i].bytes, file) == lib->states[i].bytes;
    ok = !ferror(file) && ok;
    ok = fclose(file) == 0 && ok;
  }
  if (ok) ok = rename(beside, path) == 0;
  if (!ok) status = file_error(ctx, path, strerror(errno));
  if (!ok && file) remove(beside);
  free(beside);
  return tgrt_leave(ctx, status);
}

/* ---- reading: a small JSON reader, enough for such headers and strict about everything else ---- */

typedef struct {
  const char *at, *end;
} reader;

static void skip_space(reader *r) {
  while (r->at < r->end && (*r->at == ' ' || *r->at == '\n' || *r->at == '\t' || *r->at == '\r')) ++r->at;
}

static int take(reader *r, char c) {
  skip_space(r);
  if (r->at >= r->end || *r->at != c) return 0;
  ++r->at;
  return 1;
}

/* A string into out, cut off at size - 1; \u escapes below 0x80 only are told apart. */
static int take_string(reader *r, char *out, size_t size) {
  size_t n = 0;
  if (!take(r, '"')) return 0;
  while (r->at < r->end && *r->at != '"') {
    char c = *r->at++;
    if (c == '\\') {
      if (r->at >= r->end) return 0;
      c = *r->at++;
      if (c == 'n') c = '\n';
      if (c == 't') c = '\t';
      if (c == 'u') {
        char digits[5] = {0};
        if (r->end - r->at < 4) return 0;
        memcpy(digits, r->at, 4);
        r->at += 4;
        unsigned long code = strtoul(digits, NULL, 16);
        c = code < 0x80 ? (char)code : '?';
      }
    }
    if (n + 1 < size) out[n++] = c;
  }
  out[n] = '\0';
  return take(r, '"');
}

static int take_number(reader *r, uint64_t *value) {
  skip_space(r);
  const char *start = r->at;
  for (*value = 0; r->at < r->end && *r->at >= '0' && *r->at <= '9'; ++r->at) *value = *value * 10 + (uint64_t)(*r->at - '0');
  return r->at > start && r->at - start < 20;
}

static int skip_object(reader *r) {
  char scrap[8];
  if (!take(r, '{')) return 0;
  if (take(r, '}')) return 1;
  do {
    if (!take_string(r, scrap, sizeof scrap) || !take(r, ':') || !take_string(r, scrap, sizeof scrap)) return 0;
  } while (take(r, ','));
  return take(r, '}');
}

enum { MAX_RANK = 16 };

typedef struct {
  char dtype[8];
  uint64_t shape[MAX_RANK], offsets[2];
  int ndim;
} array_info;

static int take_array_info(reader *r, array_info *info) {
  char field[16];
  memset(info, 0, sizeof *info);
  if (!take(r, '{')) return 0;
  do {
    if (!take_string(r, field, sizeof field) || !take(r, ':')) return 0;
    if (strcmp(field, "dtype") == 0) {
      if (!take_string(r, info->dtype, sizeof info->dtype)) return 0;
    } else if (strcmp(field, "shape") == 0) {
      if (!take(r, '[')) return 0;
      if (!take(r, ']')) {
        do {
          if (info->ndim == MAX_RANK || !take_number(r, &info->shape[info->ndim++])) return 0;
        } while (take(r, ','));
        if (!take(r, ']')) return 0;
      }
    } else if (strcmp(field, "data_offsets") == 0) {
      if (!take(r, '[') || !take_number(r, &info->offsets[0]) || !take(r, ',') || !take_number(r, &info->offsets[1]) || !take(r, ']'))
        return 0;
    } else {
      return 0;
    }
  } while (take(r, ','));
  return take(r, '}');
}

static int fits(const tgrt_state *s, const array_info *info) {
  int same = strcmp(info->dtype, type_in_file(s->dtype)) == 0 && info->ndim == s->ndim;
  for (int i = 0; same && i < s->ndim; ++i) same = info->shape[i] == (uint64_t)s->shape[i];
  return same && info->offsets[1] - info->offsets[0] == s->bytes && info->offsets[1] >= info->offsets[0];
}

/* Where each state's bytes begin in the file's data, UINT64_MAX for what is not there. */
static int read_places(const tgrt_library *lib, tgrt_context *ctx, const char *path, reader r, uint64_t data_bytes, uint64_t *places) {
  char name[512], text[640];
  array_info info;
  for (uint32_t i = 0; i < lib->num_states; ++i) places[i] = UINT64_MAX;
  if (!take(&r, '{')) return file_error(ctx, path, "damaged header");
  if (!take(&r, '}')) {
    do {
      if (!take_string(&r, name, sizeof name) || !take(&r, ':')) return file_error(ctx, path, "damaged header");
      if (strcmp(name, "__metadata__") == 0 ? !skip_object(&r) : !take_array_info(&r, &info)) return file_error(ctx, path, "damaged header");
      const tgrt_state *s = tgrt_find_state(lib, name); /* other arrays, another model's or an optimizer's, are left alone */
      if (!s || strcmp(name, "__metadata__") == 0) continue;
      if (!fits(s, &info) || info.offsets[1] > data_bytes) {
        snprintf(text, sizeof text, "'%s' does not fit: %s of rank %d where the library has %s of %llu bytes", name, info.dtype, info.ndim,
                 s->dtype, (unsigned long long)s->bytes);
        return file_error(ctx, path, text);
      }
      places[s - lib->states] = info.offsets[0];
    } while (take(&r, ','));
    if (!take(&r, '}')) return file_error(ctx, path, "damaged header");
  }
  for (uint32_t i = 0; i < lib->num_states; ++i) {
    if (places[i] != UINT64_MAX || lib->states[i].role == TG_HYPER) continue;
    snprintf(text, sizeof text, "no '%s'", lib->states[i].name);
    return file_error(ctx, path, text);
  }
  return TG_OK;
}

static int read_checkpoint(const tgrt_library *lib, tgrt_context *ctx, const char *path, FILE *file) {
  unsigned char head[8];
  uint64_t n = 0, size = 0;
  if (fseek(file, 0, SEEK_END) || (size = (uint64_t)ftell(file), fseek(file, 0, SEEK_SET)) || fread(head, 1, 8, file) != 8)
    return file_error(ctx, path, "not a safetensors file");
  for (int i = 0; i < 8; ++i) n |= (uint64_t)head[i] << 8 * i;
  if (n > size - 8) return file_error(ctx, path, "damaged: shorter than its header says");
  char *header = malloc((size_t)n + 1);
  uint64_t *places = malloc((lib->num_states + 1) * sizeof *places);
  int status = header && places ? TG_OK : TG_ERR_MEMORY;
  if (!status && fread(header, 1, (size_t)n, file) != n) status = file_error(ctx, path, "cannot be read");
  if (!status) status = read_places(lib, ctx, path, (reader){header, header + n}, size - 8 - n, places);
  for (uint32_t i = 0; i < lib->num_states && !status; ++i) {
    const tgrt_state *s = &lib->states[i];
    if (places[i] == UINT64_MAX) continue;
    if (fseek(file, (long)(8 + n + places[i]), SEEK_SET) || fread(ctx->states + s->offset, 1, (size_t)s->bytes, file) != s->bytes)
      status = file_error(ctx, path, "cannot be read");
  }
  free(places);
  free(header);
  return status;
}

int tgrt_checkpoint_load(const tgrt_library *lib, tgrt_context *ctx, const char *path) {
  int status = tgrt_enter(lib, ctx);
  if (status) return status;
  FILE *file = path ? fopen(path, "rb") : NULL;
  if (!file) return tgrt_leave(ctx, file_error(ctx, path ? path : "(NULL)", path ? strerror(errno) : "no file name"));
  status = read_checkpoint(lib, ctx, path, file);
  fclose(file);
  return tgrt_leave(ctx, status);
}
