-- The time of the call in µs: ARGV 1, or the server's clock if it is 0.
local now_us = time_us(ARGV[1])
