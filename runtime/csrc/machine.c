/* What this CPU can do, by LLVM's feature names. Only features that a library can need are known here. */
#include "internal.h"

#include <string.h>

#if defined(__x86_64__) || defined(__i386__)
#include <cpuid.h>

enum { NEEDS_NOTHING = 0, NEEDS_YMM = 0x6, NEEDS_ZMM = 0xe6, NEEDS_AMX = 0x60000 };

typedef struct {
  const char *name;
  unsigned leaf, subleaf;
  char reg;
  unsigned bit;
  unsigned os_state; /* bits of XCR0: registers that the system must save */
} feature;

static const feature known[] = {
    {"sse4.2", 1, 0, 'c', 20, NEEDS_NOTHING},     {"popcnt", 1, 0, 'c', 23, NEEDS_NOTHING},     {"movbe", 1, 0, 'c', 22, NEEDS_NOTHING},
    {"avx", 1, 0, 'c', 28, NEEDS_YMM},            {"fma", 1, 0, 'c', 12, NEEDS_YMM},            {"f16c", 1, 0, 'c', 29, NEEDS_YMM},
    {"avx2", 7, 0, 'b', 5, NEEDS_YMM},            {"bmi", 7, 0, 'b', 3, NEEDS_NOTHING},         {"bmi2", 7, 0, 'b', 8, NEEDS_NOTHING},
    {"lzcnt", 0x80000001, 0, 'c', 5, NEEDS_NOTHING}, {"avx512f", 7, 0, 'b', 16, NEEDS_ZMM},     {"avx512dq", 7, 0, 'b', 17, NEEDS_ZMM},
    {"avx512cd", 7, 0, 'b', 28, NEEDS_ZMM},       {"avx512bw", 7, 0, 'b', 30, NEEDS_ZMM},       {"avx512vl", 7, 0, 'b', 31, NEEDS_ZMM},
    {"avx512vnni", 7, 0, 'c', 11, NEEDS_ZMM},     {"avx512bf16", 7, 1, 'a', 5, NEEDS_ZMM},      {"avx512fp16", 7, 0, 'd', 23, NEEDS_ZMM},
    {"avxvnni", 7, 1, 'a', 4, NEEDS_YMM},         {"amx-tile", 7, 0, 'd', 24, NEEDS_AMX},       {"amx-int8", 7, 0, 'd', 25, NEEDS_AMX},
    {"amx-bf16", 7, 0, 'd', 22, NEEDS_AMX},
};

static unsigned saved_by_system(void) {
  unsigned a, b, c, d;
  if (!__get_cpuid(1, &a, &b, &c, &d) || !(c >> 27 & 1)) return 0;
  __asm__ volatile("xgetbv" : "=a"(a), "=d"(d) : "c"(0));
  return a;
}

static int machine_has(const char *name) {
  for (size_t i = 0; i < sizeof known / sizeof *known; ++i) {
    const feature *f = &known[i];
    unsigned a = 0, b = 0, c = 0, d = 0;
    if (strcmp(f->name, name) != 0) continue;
    if (!__get_cpuid_count(f->leaf, f->subleaf, &a, &b, &c, &d)) return 0;
    unsigned reg = f->reg == 'a' ? a : f->reg == 'b' ? b : f->reg == 'c' ? c : d;
    return (reg >> f->bit & 1) && (saved_by_system() & f->os_state) == f->os_state;
  }
  return 0;
}

#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>

static int machine_has(const char *name) {
  static const struct {
    const char *name;
    int word, bit;
  } known[] = {{"neon", 1, 1}, {"fullfp16", 1, 10}, {"dotprod", 1, 20}, {"sve", 1, 22}, {"sve2", 2, 1}, {"i8mm", 2, 13}, {"bf16", 2, 14}};
  for (size_t i = 0; i < sizeof known / sizeof *known; ++i)
    if (strcmp(known[i].name, name) == 0) return (int)(getauxval(known[i].word == 1 ? 16 : 26) >> known[i].bit & 1);
  return 0;
}

#else

static int machine_has(const char *name) {
  (void)name;
  return 1; /* the architecture's base; nothing optional is generated for it */
}

#endif

const char *tgrt_missing_feature(const char *features, char *name, size_t size) {
  while (*features) {
    size_t n = strcspn(features, ",");
    size_t kept = n < size - 1 ? n : size - 1;
    memcpy(name, features, kept);
    name[kept] = '\0';
    if (n && !machine_has(name)) return name;
    features += n + (features[n] == ',');
  }
  return NULL;
}
