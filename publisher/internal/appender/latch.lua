-- Appends an entry unless its key was used, and remembers the key.
-- KEYS[1]  stream
-- KEYS[2]  latch of the producer and idempotent ID
-- KEYS[3]  layout record of the stream
-- ARGV[1]  time to live of the latch in milliseconds
-- ARGV[2]  fingerprint
-- ARGV[3…] what follows the stream in XADD: trimming clause, '*', fields
-- Returns
--   {'added', entry ID}
--   {'duplicate', entry ID, fingerprint of the original, '1' if it is gone else '0'}
--   {'foreign'}  the latch was not written by this script; nothing was added
--   {'stale'}    the layout record does not say latch; nothing was added
-- Errors   those of XADD and SET; nothing was added
--
-- A latch is "idem1|<generation>|<entry ID>|<fingerprint>", written after the entry
-- and taken back with it, so that it never claims what is not in the stream. The
-- generation stands in the layout record and is raised when the stream is missing
-- or never had an entry: a deleted stream takes its history along, and voids its
-- latches.
local function lastID(info)
  for i = 1, #info, 2 do
    if info[i] == 'last-generated-id' then return info[i + 1] end
  end
end

local layout = redis.call('HMGET', KEYS[3], 'mode', 'generation')
if layout[1] ~= 'latch' then return {'stale'} end
local generation = layout[2] or '0'

local latch = redis.pcall('GET', KEYS[2])
if type(latch) == 'table' then return {'foreign'} end
-- Empty may be new: made by a consumer group, say. A stream that had entries keeps
-- the last ID when they are trimmed.
if redis.call('XLEN', KEYS[1]) == 0 and
    (redis.call('EXISTS', KEYS[1]) == 0 or lastID(redis.call('XINFO', 'STREAM', KEYS[1])) == '0-0') then
  generation = redis.call('HINCRBY', KEYS[3], 'generation', 1)
end
if latch then
  local of, id, fingerprint = string.match(latch, '^idem1|(%d+)|(%d+%-%d+)|(.*)$')
  if not id then return {'foreign'} end
  if of == tostring(generation) then
    local gone = #redis.call('XRANGE', KEYS[1], id, id) == 0
    return {'duplicate', id, fingerprint, gone and '1' or '0'}
  end
end

local id = redis.pcall('XADD', KEYS[1], unpack(ARGV, 3))
if type(id) == 'table' then return id end
local kept = redis.pcall('SET', KEYS[2], 'idem1|' .. generation .. '|' .. id .. '|' .. ARGV[2], 'PX', ARGV[1])
if kept.err then
  redis.call('XDEL', KEYS[1], id)
  return kept
end
return {'added', id}
