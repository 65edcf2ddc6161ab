// The daemon's end of a session's bell (session_layout.h). The other end is a client's, which may mean harm:
// nothing that it does there makes these calls wait. What a client leaves in it may take long to close, so
// that the end is not for close(): control/socket_reaper.h. Where it is made, keep_urgent_in_line()
// (plain_bytes.h) is called once. Any thread, one at a time for a bell.
#pragma once

namespace gradwire::engine {

// A full socket has rung already, and a client that is gone hears nothing: no error is one.
void ring_bell(int fd);

// Takes out what the client has rung, a bounded amount. False: the bell will never be of use again, because
// it is closed, shut down, or the client sends descriptors through it; it must not be watched any more.
bool take_rings(int fd);

}  // namespace gradwire::engine
