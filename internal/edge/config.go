package edge

import (
	"net/netip"
	"time"
)

// Config is the `edge:` section of the configuration file. The reference file printed by
// `shunt config reference` documents every key and holds every default.
type Config struct {
	Node          string        `yaml:"node" json:"node"`                     // this machine's name among the replicas; "" = its host name
	Writer        Writer        `yaml:"writer" json:"writer"`                 // auto | always | never
	MaxConcurrent int           `yaml:"max_concurrent" json:"max_concurrent"` // probes in flight across all candidates
	VetoFor       time.Duration `yaml:"veto_for" json:"veto_for"`             // life of a veto without a fresh failed probe
	Deadline      time.Duration `yaml:"deadline" json:"deadline"`             // of one exchange with one replica
	Replicas      []Replica     `yaml:"replicas" json:"replicas,omitempty"`   // empty = this machine alone
	Services      []Service     `yaml:"services" json:"services"`
	Parity        []ParityGroup `yaml:"parity" json:"parity,omitempty"`
}

// Writer says when this machine moves targets, and when it only compares.
type Writer string

// The values of Writer. The zero value is not said, which is auto.
const (
	WriterUnknown Writer = ""
	WriterAuto    Writer = "auto"   // the holder of the address, else the lowest-named live replica
	WriterAlways  Writer = "always" // shunt runs on this machine alone
	WriterNever   Writer = "never"
)

// Replica is one machine that has the tables.
type Replica struct {
	Name      string       `yaml:"name" json:"name"`                               // core-01
	Transport []string     `yaml:"transport,omitempty" json:"transport,omitempty"` // argv that takes nft commands on stdin: [ssh, core-02, nft, -i]; empty = this machine
	Addresses []netip.Addr `yaml:"addresses,omitempty" json:"addresses,omitempty"` // the node's own, answered by its node table
}

// Protocol is the transport protocol of a service.
type Protocol string

// The protocols. The zero value is unknown and never valid.
const (
	ProtocolUnknown Protocol = ""
	TCP             Protocol = "tcp"
	UDP             Protocol = "udp"
)

// Strategy says how a target is chosen.
type Strategy string

// The strategies. The zero value is not said, which is first_available.
const (
	StrategyUnknown        Strategy = ""
	StrategyFirstAvailable Strategy = "first_available"
)

// SNAT says when the source address of a client is replaced by the holder's.
type SNAT string

// The source NAT settings. The zero value is not said, which is hairpin.
const (
	SNATUnknown SNAT = ""
	SNATHairpin SNAT = "hairpin" // where client and candidate would bypass the way back
	SNATAlways  SNAT = "always"  // for candidates whose way back is not through the holder
)

// OnHint says what a closed tripwire causes.
type OnHint string

// The values of OnHint. The zero value is not said, which is confirm.
const (
	OnHintUnknown OnHint = ""
	OnHintConfirm OnHint = "confirm" // a burst of connects first, then the move
	OnHintDivert  OnHint = "divert"  // the move first, back when the burst finds it alive
)

// Service is a virtual address with ports that healthy candidates answer.
type Service struct {
	Name       string       `yaml:"name" json:"name"` // front
	VIP        []netip.Addr `yaml:"vip" json:"vip"`   // at most one of each family
	Port       int          `yaml:"port" json:"port"`
	Protocols  []Protocol   `yaml:"protocols" json:"protocols"`
	Strategy   Strategy     `yaml:"strategy" json:"strategy"`
	Sticky     bool         `yaml:"sticky" json:"sticky"`         // keep a healthy target when a better one recovers
	Nodes      bool         `yaml:"nodes" json:"nodes"`           // the replicas' own addresses answer too, by their local candidate first
	SNAT       SNAT         `yaml:"snat" json:"snat"`             // hairpin | always
	ResetDead  bool         `yaml:"reset_dead" json:"reset_dead"` // on a veto, cut TCP flows to the dead candidate
	Tripwire   bool         `yaml:"tripwire" json:"tripwire"`     // hold an idle connection to each candidate
	OnHint     OnHint       `yaml:"on_hint" json:"on_hint"`       // confirm | divert
	Probe      Probe        `yaml:"probe" json:"probe"`
	Candidates []Candidate  `yaml:"candidates" json:"candidates"`
}

// Candidate is one server that can answer a service.
type Candidate struct {
	Name      string       `yaml:"name,omitempty" json:"name"`                       // proxy-01; "" = its first address
	Node      string       `yaml:"node,omitempty" json:"node,omitempty"`             // replica that it runs on; "" = none
	Addresses []netip.Addr `yaml:"addresses" json:"addresses"`                       // at most one of each family
	Port      int          `yaml:"port,omitempty" json:"port,omitempty"`             // 0 = the service's
	Weight    int          `yaml:"weight" json:"weight,omitempty"`                   // 1; first_available takes no notice
	ProbePort int          `yaml:"probe_port,omitempty" json:"probe_port,omitempty"` // 0 = the probe's, else its own port
}

// ProbeType names how a candidate is asked.
type ProbeType string

// The probe types. The zero value is unknown and never valid.
const (
	ProbeUnknown    ProbeType = ""
	ProbeTCP        ProbeType = "tcp"
	ProbeTLS        ProbeType = "tls"
	ProbeHTTP       ProbeType = "http"
	ProbeStatusPing ProbeType = "status_ping" // Minecraft's server list ping
	ProbeExec       ProbeType = "exec"
	ProbeNone       ProbeType = "none" // always taken for healthy
)

// Probe says how, how often and how strictly candidates are asked.
type Probe struct {
	Type       ProbeType     `yaml:"type" json:"type"`
	Interval   time.Duration `yaml:"interval" json:"interval"` // between the beginnings of two probes of one candidate
	Cap        time.Duration `yaml:"cap" json:"cap"`           // longest that one probe may take
	Misses     int           `yaml:"misses" json:"misses"`     // in a row, until a veto
	Rise       int           `yaml:"rise" json:"rise"`         // in a row, until the veto goes
	Port       int           `yaml:"port,omitempty" json:"port,omitempty"`
	ServerName string        `yaml:"server_name,omitempty" json:"server_name,omitempty"` // tls, http over TLS, status_ping; "" = the address
	TLS        bool          `yaml:"tls,omitempty" json:"tls,omitempty"`                 // http
	Verify     bool          `yaml:"verify,omitempty" json:"verify,omitempty"`           // tls, http: the certificate must be valid
	Path       string        `yaml:"path,omitempty" json:"path,omitempty"`               // http: /healthz
	Status     []string      `yaml:"status" json:"status,omitempty"`                     // http: 200, 200-399
	Body       string        `yaml:"body,omitempty" json:"body,omitempty"`               // http: must be in the first 64 KiB
	ProxyV2    bool          `yaml:"proxy_v2,omitempty" json:"proxy_v2,omitempty"`       // begin with a PROXY v2 LOCAL header
	Login      bool          `yaml:"login,omitempty" json:"login,omitempty"`             // status_ping: also begin a login and look at the answer
	Command    []string      `yaml:"command,omitempty" json:"command,omitempty"`         // exec: argv; {address}, {port} and {candidate} are replaced
}

// ParityGroup is a set of files that must be equal everywhere: a secret, a configuration.
type ParityGroup struct {
	Name      string         `yaml:"name" json:"name"`                     // forwarding-secret
	Every     time.Duration  `yaml:"every" json:"every"`                   // at most this often
	Timeout   time.Duration  `yaml:"timeout" json:"timeout"`               // of one member
	Reference string         `yaml:"reference,omitempty" json:"reference"` // SHA-256 in hex; "" = members are compared with each other
	Members   []ParityMember `yaml:"members" json:"members"`
}

// ParityMember is where one member's copy is read. Only hashes are ever shown.
type ParityMember struct {
	Name    string   `yaml:"name" json:"name"`
	Path    string   `yaml:"path,omitempty" json:"path,omitempty"`       // file on this machine
	Command []string `yaml:"command,omitempty" json:"command,omitempty"` // argv that prints it
}
