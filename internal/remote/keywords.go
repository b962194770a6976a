package remote

import (
	"maps"
	"slices"
	"strings"
)

// keyword is how dsbuild's own SSH treats a keyword of ssh_config(5). A keyword that decides where to connect, from
// where or how is either supported, or OpenSSH is used for the node. Keywords that are not in the table need OpenSSH.
type keyword struct {
	obeyed  bool   // dsbuild's own SSH does as it says, or ssh -G has done so
	openSSH string // its name, if only OpenSSH does as it says
	unless  string // the value of such a keyword that asks for nothing; empty: none does
	idle    string // why it decides none of this
}

// The reasons that several keywords share.
const (
	strict   = "known_hosts alone decides"
	sessions = "ssh opens no session here"
	forwards = "nothing is forwarded"
	ownTime  = "the limits are built in"
	sharing  = "ControlPath decides"
	ofOthers = "no effect without a keyword that OpenSSH gets"
	display  = "what ssh shows"
	resolved = "ssh -G has applied it"
)

// keywords is the table, by the names that ssh -G prints.
func keywords() map[string]keyword { //nolint:revive // a table, however long
	obeyed := keyword{obeyed: true}
	return map[string]keyword{
		"addressfamily": obeyed, "batchmode": obeyed, "casignaturealgorithms": obeyed, "certificatefile": obeyed,
		"challengeresponseauthentication": obeyed, "ciphers": obeyed, "controlpath": obeyed,
		"globalknownhostsfile": obeyed, "hostkeyalgorithms": obeyed, "hostkeyalias": obeyed, "hostname": obeyed,
		"identitiesonly": obeyed, "identityagent": obeyed, "identityfile": obeyed,
		"kbdinteractiveauthentication": obeyed, "kexalgorithms": obeyed, "macs": obeyed,
		"passwordauthentication": obeyed, "port": obeyed, "preferredauthentications": obeyed, "proxyjump": obeyed,
		"pubkeyacceptedalgorithms": obeyed, "pubkeyauthentication": obeyed, "requiredrsasize": obeyed, "setenv": obeyed,
		"user": obeyed, "userknownhostsfile": obeyed,

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

		"canonicaldomains": {idle: resolved}, "canonicalizefallbacklocal": {idle: resolved},
		"canonicalizehostname": {idle: resolved}, "canonicalizemaxdots": {idle: resolved},
		"canonicalizepermittedcnames": {idle: resolved}, "host": {idle: resolved}, "ignoreunknown": {idle: resolved},
		"include": {idle: resolved}, "match": {idle: resolved}, "tag": {idle: resolved},

		"nohostauthenticationforlocalhost": {idle: strict}, "stricthostkeychecking": {idle: strict},
		"verifyhostkeydns": {idle: strict}, "hashknownhosts": {idle: "known_hosts is not written"},
		"updatehostkeys": {idle: "known_hosts is not written"},

		"enablesshkeysign": {idle: ofOthers}, "gssapiclientidentity": {idle: ofOthers},
		"gssapidelegatecredentials": {idle: ofOthers}, "gssapikexalgorithms": {idle: ofOthers},
		"gssapirenewalforcesrekey": {idle: ofOthers}, "gssapiserveridentity": {idle: ofOthers},
		"gssapitrustdns": {idle: ofOthers}, "hostbasedacceptedalgorithms": {idle: ofOthers},
		"proxyusefdpass": {idle: ofOthers}, "securitykeyprovider": {idle: ofOthers},

		"channeltimeout": {idle: sessions}, "enableescapecommandline": {idle: sessions}, "escapechar": {idle: sessions},
		"forkafterauthentication": {idle: sessions}, "localcommand": {idle: sessions},
		"obscurekeystroketiming": {idle: sessions}, "permitlocalcommand": {idle: sessions},
		"remotecommand": {idle: sessions}, "requesttty": {idle: sessions},
		"sessiontype": {idle: sessions}, "stdinnull": {idle: sessions},
		"sendenv": {idle: "a node's answers must not depend on this machine's locale"},

		"clearallforwardings": {idle: forwards}, "dynamicforward": {idle: forwards},
		"exitonforwardfailure": {idle: forwards}, "forwardagent": {idle: forwards}, "forwardx11": {idle: forwards},
		"forwardx11timeout": {idle: forwards}, "forwardx11trusted": {idle: forwards}, "gatewayports": {idle: forwards},
		"localforward": {idle: forwards}, "permitremoteopen": {idle: forwards}, "remoteforward": {idle: forwards},
		"streamlocalbindmask": {idle: forwards}, "streamlocalbindunlink": {idle: forwards},
		"tunnel": {idle: forwards}, "tunneldevice": {idle: forwards}, "xauthlocation": {idle: forwards},

		"connectionattempts": {idle: ownTime}, "connecttimeout": {idle: ownTime},
		"numberofpasswordprompts": {idle: ownTime}, "rekeylimit": {idle: ownTime},
		"serveralivecountmax": {idle: ownTime}, "serveraliveinterval": {idle: ownTime}, "tcpkeepalive": {idle: ownTime},

		"controlmaster": {idle: sharing}, "controlpersist": {idle: sharing},

		"fingerprinthash": {idle: display}, "loglevel": {idle: display}, "logverbose": {idle: display},
		"syslogfacility": {idle: display}, "versionaddendum": {idle: display}, "visualhostkey": {idle: display},
		"warnweakcrypto": {idle: display},

		"addkeystoagent": {idle: "changes the agent alone"}, "compression": {idle: "speed"}, "ipqos": {idle: "speed"},
	}
}

// idleKeywords are those that a node's settings need not hold.
func idleKeywords() map[string]bool {
	all, off := map[string]bool{}, switchedOff()
	for key, k := range keywords() {
		all[key] = k.idle != "" && off[key] == ""
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
