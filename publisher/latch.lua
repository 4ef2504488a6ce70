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
-- A latch is "idem1|<entry ID>|<fingerprint>", written after the entry and taken
-- back with it, so that it never claims what is not in the stream.
local layout = redis.call('HMGET', KEYS[3], 'mode', 'born')
if layout[1] ~= 'latch' then return {'stale'} end

local function parse(id)
  local ms, seq = string.match(id, '^(%d+)-(%d+)$')
  return tonumber(ms), tonumber(seq)
end

-- A deleted stream takes its history along. Its latches are void: those left
-- from before the first entry of the stream that was made after it.
local function void(id)
  if not layout[2] then return false end
  local ms, seq = parse(id)
  local bornMs, bornSeq = parse(layout[2])
  return ms < bornMs or ms == bornMs and seq < bornSeq
end

local exists = redis.call('EXISTS', KEYS[1]) == 1
local latch = redis.pcall('GET', KEYS[2])
if latch then
  if type(latch) == 'table' then return {'foreign'} end
  local id, fingerprint = string.match(latch, '^idem1|(%d+%-%d+)|(.*)$')
  if not id then return {'foreign'} end
  if exists and not void(id) then
    local gone = #redis.call('XRANGE', KEYS[1], id, id) == 0
    return {'duplicate', id, fingerprint, gone and '1' or '0'}
  end
end

local id = redis.pcall('XADD', KEYS[1], unpack(ARGV, 3))
if type(id) == 'table' then return id end
local kept = redis.pcall('SET', KEYS[2], 'idem1|' .. id .. '|' .. ARGV[2], 'PX', ARGV[1])
if not kept.err and not exists then
  kept = redis.pcall('HSET', KEYS[3], 'born', id)
  if type(kept) ~= 'table' then kept = {} end
end
if kept.err then
  redis.call('XDEL', KEYS[1], id)
  redis.pcall('DEL', KEYS[2])
  return kept
end
return {'added', id}
