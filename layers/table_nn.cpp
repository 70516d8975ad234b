#include <sluice/layers/table_rows.h>

namespace sluice::detail {

void add_nn_rows(RowList& list) { nn_rows(list); }

}  // namespace sluice::detail
