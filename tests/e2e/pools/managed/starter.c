/* HTCondor's own starter serves remote calls of jobs that want them. With this before it, it serves them for all: a starter that somebody
 * else has written asks nobody. Both are classad::ClassAd's members of these names, of (const std::string &, bool &) const. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <string.h>

#define SERVE(symbol)                                                                                   \
    _Bool symbol(const void *ad, const char *const *name, _Bool *value) {                               \
        if (strcmp(*name, "WantIOProxy") == 0) return *value = 1;                                       \
        return ((_Bool(*)(const void *, const char *const *, _Bool *))dlsym(RTLD_NEXT, #symbol))(ad, name, value); \
    }
SERVE(_ZNK7classad7ClassAd16EvaluateAttrBoolERKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEERb)
SERVE(_ZNK7classad7ClassAd21EvaluateAttrBoolEquivERKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEERb)
