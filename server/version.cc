#include "server/version.h"

#define ATTND_TEXT_OF(x) #x
#define ATTND_TEXT(x) ATTND_TEXT_OF(x)

namespace attnd::server {

// ATTND_VERSION comes from the project's version in CMake.
const char* Version() { return ATTND_VERSION; }

const char* Compiler() {
#if defined(__clang__)
  return "clang " ATTND_TEXT(__clang_major__) "." ATTND_TEXT(__clang_minor__) "." ATTND_TEXT(
      __clang_patchlevel__);
#else
  return "gcc " ATTND_TEXT(__GNUC__) "." ATTND_TEXT(__GNUC_MINOR__) "." ATTND_TEXT(
      __GNUC_PATCHLEVEL__);
#endif
}

}  // namespace attnd::server
