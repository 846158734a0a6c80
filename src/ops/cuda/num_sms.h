// Multiprocessors of the device this process uses; asked for once. 1 where the driver does not say, so that plans can
// be made: their launches then fail.
#pragma once

namespace vayu::ops {

int num_sms();

}  // namespace vayu::ops
