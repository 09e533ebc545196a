// Settings of the C library's allocator for a process that receives large messages.
#ifndef ATTND_SERVER_ALLOCATOR_H_
#define ATTND_SERVER_ALLOCATOR_H_

namespace attnd::server {

// Keeps the memory of large messages in the process. Call it in main, before threads exist.
void TuneAllocator();

}  // namespace attnd::server

#endif  // ATTND_SERVER_ALLOCATOR_H_
