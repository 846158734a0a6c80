// Standard input and Ctrl-C as the chat loop wants them.
#pragma once

#include "apps/chat/chat_loop.h"

namespace vayu::chat {

// A console on standard input, output and error; interactive when the first two are terminals. Takes SIGINT over: the
// third press ends the process whatever it is doing. One in a process.
Console open_console();

}  // namespace vayu::chat
