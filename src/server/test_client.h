// Raw HTTP over a loopback socket, for tests: what is sent is what stands in the test.
#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace vayu::server {

struct ClientResponse {
  int status = 0;                              // 0: the connection ended first
  std::map<std::string, std::string> headers;  // names in lower case
  std::string body;                            // chunks joined
  bool complete = false;

  nlohmann::ordered_json json() const { return nlohmann::ordered_json::parse(body, nullptr, false); }
  // Data of the events; every line must be "data: ..." or a comment and every event end in LF LF.
  std::vector<std::string> events() const {
    std::vector<std::string> events;
    for (size_t at = 0; at < body.size();) {
      const size_t end = body.find("\n\n", at);
      EXPECT_NE(end, std::string::npos) << body.substr(at);
      if (end == std::string::npos) break;
      const std::string line = body.substr(at, end - at);
      if (line != ":") {
        EXPECT_EQ(line.rfind("data: ", 0), 0u) << line;
        EXPECT_EQ(line.find_first_of("\r\n"), std::string::npos) << line;
        events.push_back(line.substr(6));
      }
      at = end + 2;
    }
    return events;
  }
};

class TestClient {
 public:
  explicit TestClient(uint16_t port, int receive_buffer_bytes = 0) {
    fd_ = socket(AF_INET, SOCK_STREAM, 0);
    if (receive_buffer_bytes > 0) {
      setsockopt(fd_, SOL_SOCKET, SO_RCVBUF, &receive_buffer_bytes, sizeof receive_buffer_bytes);
    }
    const timeval timeout{20, 0};
    setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof timeout);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    connected_ = connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
  }
  TestClient(const TestClient&) = delete;
  TestClient& operator=(const TestClient&) = delete;
  ~TestClient() { close(); }

  bool connected() const { return connected_; }
  void close() {
    if (fd_ >= 0) ::close(fd_);
    fd_ = -1;
  }
  bool send(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t sent = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent <= 0) return false;
      bytes.remove_prefix(static_cast<size_t>(sent));
    }
    return true;
  }

  // Waits for the first `count` bytes of the stream without taking them.
  bool wait_for_bytes() {
    char byte;
    return recv(fd_, &byte, 1, MSG_PEEK) == 1;
  }

  ClientResponse read_response(bool head = false) {
    ClientResponse response;
    size_t header_end;
    while ((header_end = pending_.find("\r\n\r\n")) == std::string::npos) {
      if (!fill()) return response;
    }
    parse_header(pending_.substr(0, header_end), &response);
    pending_.erase(0, header_end + 4);
    if (head || response.status == 204 || response.status == 100) {
      response.complete = true;
    } else if (response.headers.count("content-length") > 0) {
      const size_t size = std::stoul(response.headers["content-length"]);
      while (pending_.size() < size && fill()) continue;
      response.complete = pending_.size() >= size;
      response.body = pending_.substr(0, size);
      pending_.erase(0, size);
    } else if (response.headers.count("transfer-encoding") > 0) {
      response.complete = read_chunks(&response.body);
    } else {
      while (fill()) continue;
      response.body = std::exchange(pending_, {});
      response.complete = true;
    }
    return response;
  }

  // True once the peer has closed.
  bool at_end() { return pending_.empty() && !fill(); }

 private:
  bool fill() {
    char buffer[16384];
    const ssize_t size = recv(fd_, buffer, sizeof buffer, 0);
    if (size <= 0) return false;
    pending_.append(buffer, static_cast<size_t>(size));
    return true;
  }
  void parse_header(const std::string& text, ClientResponse* response) {
    response->status = std::stoi(text.substr(9, 3));
    for (size_t at = text.find("\r\n"); at != std::string::npos;) {
      const size_t begin = at + 2;
      at = text.find("\r\n", begin);
      const std::string line = text.substr(begin, at == std::string::npos ? at : at - begin);
      const size_t colon = line.find(": ");
      std::string name = line.substr(0, colon);
      for (char& c : name) c = static_cast<char>(std::tolower(c));
      response->headers[name] = line.substr(colon + 2);
    }
  }
  bool read_chunks(std::string* body) {
    for (;;) {
      size_t line_end;
      while ((line_end = pending_.find("\r\n")) == std::string::npos) {
        if (!fill()) return false;
      }
      const size_t size = std::stoul(pending_.substr(0, line_end), nullptr, 16);
      while (pending_.size() < line_end + 2 + size + 2) {
        if (!fill()) return false;
      }
      body->append(pending_, line_end + 2, size);
      pending_.erase(0, line_end + 2 + size + 2);
      if (size == 0) return true;
    }
  }

  int fd_ = -1;
  bool connected_ = false;
  std::string pending_;
};

inline std::string http_request(const std::string& method, const std::string& target, const std::string& body = {},
                                const std::string& headers = {}) {
  std::string text = method + " " + target + " HTTP/1.1\r\nHost: localhost\r\n" + headers;
  if (!body.empty())
    text += "Content-Type: application/json\r\nContent-Length: " + std::to_string(body.size()) + "\r\n";
  return text + "\r\n" + body;
}

}  // namespace vayu::server
