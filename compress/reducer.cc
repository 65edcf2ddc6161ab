#include "compress/reducer.h"

namespace gradwire::compress {

size_t dtype_size(Dtype dtype) {
  switch (dtype) {
    case Dtype::kFloat32:
    case Dtype::kInt32:
      return 4;
    case Dtype::kFloat16:
    case Dtype::kBfloat16:
      return 2;
    case Dtype::kFloat64:
    case Dtype::kInt64:
      return 8;
    case Dtype::kUint8:
      return 1;
  }
  return 0;
}

}  // namespace gradwire::compress
