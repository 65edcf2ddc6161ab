// This process's accept() and accept4(): where a listening socket is guarded, they close at once what
// strangers have opened, and only hosts that are admitted get as far as the caller. UCX's own calls come here
// too, because the symbols of the program precede those of its libraries; so no privileges are needed, as a
// socket filter would want them (CAP_NET_ADMIN for TCP sockets, in kernels since 2026).
//
// Any thread: UCX accepts on one of its own.
#pragma once

#include <sys/types.h>

#include <vector>

#include "transport/ucx/numeric_address.h"

namespace gradwire::transport::ucx_internal {

// What the kernel calls a socket by; 0: the descriptor is none.
ino_t inode_of(int fd);
// From now on only these hosts get through to the listening socket with this inode. What is open stays open.
void admit_at_door(ino_t socket, const std::vector<NumericAddress>& hosts);
// Everybody does again. Before the socket is closed: inodes are used again.
void leave_door_open(ino_t socket);
// False: another accept() comes before this one, and the door guards nothing.
bool door_is_in_place();

}  // namespace gradwire::transport::ucx_internal
