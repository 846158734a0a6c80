// Multiprocessors of the device this process uses; asked for once.
#pragma once

namespace vayu::ops {

int num_sms();

}  // namespace vayu::ops
