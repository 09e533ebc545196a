// How attnd runs RocksDB. Only the store's implementation and benchmarks include this.
#ifndef ATTND_SERVER_STORE_ROCKSDB_OPTIONS_H_
#define ATTND_SERVER_STORE_ROCKSDB_OPTIONS_H_

#include <rocksdb/options.h>

namespace attnd::server {

rocksdb::Options MakeRocksDbOptions();

}  // namespace attnd::server

#endif  // ATTND_SERVER_STORE_ROCKSDB_OPTIONS_H_
