package remote

import (
	"maps"
	"slices"
	"strings"
)

// keyword is how dsbuild's own SSH treats a keyword of ssh_config(5). If a keyword decides where to connect, from where or
// how, dsbuild's own SSH obeys it, or OpenSSH is used for the node. Keywords that are not in the table need OpenSSH.
type keyword struct {
	openSSH string // its name, if only OpenSSH obeys it
	unless  string // the value with which such a keyword has no effect; empty if there is none
	idle    bool   // it decides none of this
}

// obeyed are the keywords that dsbuild's own SSH obeys.
const obeyed = "addressfamily batchmode casignaturealgorithms certificatefile challengeresponseauthentication ciphers " +
	"controlpath globalknownhostsfile hostkeyalgorithms hostkeyalias hostname identitiesonly identityagent identityfile " +
	"kbdinteractiveauthentication kexalgorithms macs passwordauthentication port preferredauthentications proxyjump " +
	"pubkeyacceptedalgorithms pubkeyauthentication requiredrsasize setenv user userknownhostsfile "

// idle are the keywords that decide neither where to connect, from where nor how.
const idle = "" +
	// ssh -G has applied them.
	"canonicaldomains canonicalizefallbacklocal canonicalizehostname canonicalizemaxdots canonicalizepermittedcnames host " +
	"ignoreunknown include match tag " +
	// Only known_hosts decides, and it is not written.
	"hashknownhosts nohostauthenticationforlocalhost stricthostkeychecking updatehostkeys verifyhostkeydns " +
	// They have no effect without a keyword that needs OpenSSH.
	"enablesshkeysign gssapiclientidentity gssapidelegatecredentials gssapikexalgorithms gssapirenewalforcesrekey " +
	"gssapiserveridentity gssapitrustdns hostbasedacceptedalgorithms proxyusefdpass securitykeyprovider " +
	// ssh opens no session here. The nodes' answers must not depend on this machine's locale (SendEnv).
	"channeltimeout enableescapecommandline escapechar forkafterauthentication localcommand obscurekeystroketiming " +
	"permitlocalcommand remotecommand requesttty sendenv sessiontype stdinnull " +
	// Nothing is forwarded.
	"clearallforwardings dynamicforward exitonforwardfailure forwardagent forwardx11 forwardx11timeout forwardx11trusted " +
	"gatewayports localforward permitremoteopen remoteforward streamlocalbindmask streamlocalbindunlink tunnel " +
	"tunneldevice xauthlocation " +
	// dsbuild has its own limits.
	"connectionattempts connecttimeout numberofpasswordprompts rekeylimit serveralivecountmax serveraliveinterval " +
	"tcpkeepalive " +
	// ControlPath decides.
	"controlmaster controlpersist " +
	// What ssh displays.
	"fingerprinthash loglevel logverbose syslogfacility versionaddendum visualhostkey warnweakcrypto " +
	// The agent and the speed.
	"addkeystoagent compression ipqos "

// keywords returns the table, by the names that ssh -G prints.
func keywords() map[string]keyword {
	table := map[string]keyword{
		"bindaddress":             {openSSH: "BindAddress"},
		"bindinterface":           {openSSH: "BindInterface"},
		"checkhostip":             {openSSH: "CheckHostIP", unless: "no"},
		"gssapiauthentication":    {openSSH: "GSSAPIAuthentication", unless: "no"}, // with a ticket
		"gssapikeyexchange":       {openSSH: "GSSAPIKeyExchange", unless: "no"},    // with a ticket
		"hostbasedauthentication": {openSSH: "HostbasedAuthentication", unless: "no"},
		"kbdinteractivedevices":   {openSSH: "KbdInteractiveDevices"},
		"knownhostscommand":       {openSSH: "KnownHostsCommand", unless: "none"},
		"pkcs11provider":          {openSSH: "PKCS11Provider", unless: "none"},
		"proxycommand":            {openSSH: "ProxyCommand", unless: "none"},
		"refuseconnection":        {openSSH: "RefuseConnection"},
		"revokedhostkeys":         {openSSH: "RevokedHostKeys", unless: "none"},
		"usekeychain":             {openSSH: "UseKeychain", unless: "no"},
	}
	for key := range strings.FieldsSeq(obeyed) {
		table[key] = keyword{}
	}
	for key := range strings.FieldsSeq(idle) {
		table[key] = keyword{idle: true}
	}
	return table
}

// idleKeywords are those that a node's settings need not hold.
func idleKeywords() map[string]bool {
	all, off := map[string]bool{}, switchedOff()
	for key := range strings.FieldsSeq(idle) {
		all[key] = off[key] == ""
	}
	return all
}

// canonical returns the name that a newer ssh prints for a keyword.
func canonical(key string) string {
	switch key = strings.ToLower(key); key {
	case "dsaauthentication":
		return "pubkeyauthentication"
	case "hostbasedkeytypes":
		return "hostbasedacceptedalgorithms"
	case "pubkeyacceptedkeytypes":
		return "pubkeyacceptedalgorithms"
	case "rsaminsize":
		return "requiredrsasize"
	case "smartcarddevice":
		return "pkcs11provider"
	}
	return key
}

// switchedOff are the keywords that may keep an OpenSSH master from working, with values that do not. An older ssh does
// not support them all, so they are set only if the configuration has them.
func switchedOff() map[string]string {
	return map[string]string{
		"channeltimeout": "none", "forkafterauthentication": "no", "logverbose": "none", "stdinnull": "no",
	}
}

// fillAlgorithms fills the settings of the connection itself, and those that OpenSSH must not apply.
func fillAlgorithms(t *Target, set settings) {
	list := func(key string) []string {
		return strings.FieldsFunc(set.first(key), func(r rune) bool { return r == ',' })
	}
	t.allowed = algorithms{
		kex: list("kexalgorithms"), ciphers: list("ciphers"), macs: list("macs"), hostKeys: list("hostkeyalgorithms"),
		authorities: list("casignaturealgorithms"), keys: list("pubkeyacceptedalgorithms"),
		rsaBits: set.number("requiredrsasize"),
	}
	t.setEnv = set["setenv"]
	t.family = map[string]string{"inet": "tcp4", "inet6": "tcp6"}[set.first("addressfamily")]
	off := switchedOff()
	for _, key := range slices.Sorted(maps.Keys(off)) {
		if len(set[key]) > 0 {
			t.switchOff = append(t.switchOff, key+"="+off[key])
		}
	}
}
