package faultlink

// NotNow are error replies for [Link.Answer] that say "not now", of servers and of proxies
// in front of them: nothing was done, and another try may succeed.
var NotNow = []string{
	"LOADING Redis is loading the dataset in memory",
	"READONLY You can't write against a read only replica.",
	"TRYAGAIN Multiple keys request during rehashing of slot",
	"CLUSTERDOWN The cluster is down",
	"MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
	"NOREPLICAS Not enough good replicas to write.",
	"MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist to disk.",
	"OOM command not allowed when used memory > 'maxmemory'.",
	"BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.",
	"ERR max number of clients reached",
	"no upstream host",                                      // Envoy
	"ERR no server connection avaliable",                    //nolint:misspell // predixy spells it so
	"ERR Connection refused",                                // twemproxy
	"ERR handle request, slot is not ready, may be offline", // Codis
}
