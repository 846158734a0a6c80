#pragma once

#include "apps/chat/chat_backend.h"
#include "core/engine_client.h"
#include "tokenizer/chat_template.h"
#include "tokenizer/tokenizer.h"

namespace vayu::chat {

// An engine in this process. kUnsupported: the model brings no chat template.
Result<std::unique_ptr<ChatBackend>> make_local_backend(std::shared_ptr<EngineClient> engine,
                                                        std::shared_ptr<const Tokenizer> tokenizer,
                                                        std::shared_ptr<const ChatTemplate> chat_template);

}  // namespace vayu::chat
