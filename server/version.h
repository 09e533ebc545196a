// What was built, for --version, GetServerInfo and attnd_build_info.
#ifndef ATTND_SERVER_VERSION_H_
#define ATTND_SERVER_VERSION_H_

namespace attnd::server {

// Such as "0.1.0".
const char* Version();

// Such as "clang 14.0.6" or "gcc 12.2.0".
const char* Compiler();

}  // namespace attnd::server

#endif  // ATTND_SERVER_VERSION_H_
