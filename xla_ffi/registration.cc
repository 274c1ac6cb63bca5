#include "xla_ffi/registration.h"

namespace zen {

const std::vector<Registration>& registrations() {
  static const auto* const table = new std::vector<Registration>{
      {"zen_partition", ZenPartition},
      {"zen_aggregate", ZenAggregate},
      {"zen_hash_bitmap_encode", ZenHashBitmapEncode},
      {"zen_hash_bitmap_decode", ZenHashBitmapDecode},
      {"zen_hierarchical_hash", ZenHierarchicalHash},
  };
  return *table;
}

}  // namespace zen
