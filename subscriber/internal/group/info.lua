-- Tells about a stream and a group of it. XINFO STREAM returns the first and the last entry
-- in full, however large they are; this does not. It is one step, so that all of the answer
-- is about the same group, and a script so that a client that reads from replicas asks the
-- master.
-- KEYS[1]  stream
-- ARGV[1]  group; '' to ask about the stream alone
-- ARGV[2]  consumer that asks
-- Returns  {last generated ID, number of entries ever added, number of entries, ID of the first
--          entry or ''}, and for a group {..., ID of the last entry that was delivered, number
--          of entries read or -1, lowest pending ID or '', number of pending entries, how many
--          of them are pending for the consumer}; {} where there is no stream and no group
--          was asked about
-- Errors   NOGROUP, also where the stream is missing
local key, group, me = KEYS[1], ARGV[1], ARGV[2]
local function fieldsOf(list)
  local fields = {}
  for i = 1, #list, 2 do fields[list[i]] = list[i + 1] end
  return fields
end

local pending
if group ~= '' then pending = redis.call('XPENDING', key, group) end
local info = redis.pcall('XINFO', 'STREAM', key)
if info.err then
  if string.find(info.err, 'no such key', 1, true) then return {} end
  return info
end
local stream = fieldsOf(info)
local first = stream['first-entry']
local out = {stream['last-generated-id'], stream['entries-added'] or 0, stream.length or 0, first and first[1] or ''}
if group == '' then return out end

local last, read = '0-0', -1
for _, one in ipairs(redis.call('XINFO', 'GROUPS', key)) do
  local fields = fieldsOf(one)
  if fields.name == group then last, read = fields['last-delivered-id'], fields['entries-read'] or -1 end
end
local mine = 0
for _, consumer in ipairs(pending[4] or {}) do
  if consumer[1] == me then mine = tonumber(consumer[2]) end
end
for _, v in ipairs({last, read, pending[2] or '', pending[1], mine}) do out[#out + 1] = v end
return out
