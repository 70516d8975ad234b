#include <sluice/layers/table_rows.h>

namespace sluice::detail {

void add_linear_time_rows(RowList& list) { linear_time_rows(list); }

}  // namespace sluice::detail
