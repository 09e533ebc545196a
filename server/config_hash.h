// The hash of a session's configuration, which its records in the store carry: what was written for
// one configuration is never read for another.
//
// 128-bit XXH3 of a canonical encoding, since protobuf's bytes are not canonical. A message is: for
// each of its fields that is present (a scalar without presence: that is not zero), in ascending
// order of field numbers, the number (8 bytes, least significant first), the count of values (8
// bytes), and the values: integers, enums and bools as 8 bytes; float and double as the bits of a
// double; strings and bytes as their length and their bytes; messages as the encoding of their
// own, preceded by its length. The mutable fields, labels and time-to-live, are left out.
//
// Pure; thread-safe.
#ifndef ATTND_SERVER_CONFIG_HASH_H_
#define ATTND_SERVER_CONFIG_HASH_H_

#include "attnd/v1/attention.pb.h"
#include "server/store/record.h"

namespace attnd::server {

ConfigHash HashOfConfig(const v1::SessionConfig& config);

}  // namespace attnd::server

#endif  // ATTND_SERVER_CONFIG_HASH_H_
