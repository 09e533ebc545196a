// Settings of the libraries that a process with a gRPC server stands on.
#ifndef ATTND_SERVER_RUNTIME_H_
#define ATTND_SERVER_RUNTIME_H_

namespace attnd::server {

// Keeps Abseil's mutexes from looking for lock cycles. Call it in main, before threads exist.
void TuneRuntime();

}  // namespace attnd::server

#endif  // ATTND_SERVER_RUNTIME_H_
