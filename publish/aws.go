package publish

import (
	"cmp"
	"path/filepath"

	"github.com/minio/minio-go/v7/pkg/credentials"
	"gopkg.in/ini.v1"
)

// awsSettings are the settings of a store in the environment and in ~/.aws.
type awsSettings struct{ profile, endpoint, region, credentials string }

const amazon = "https://s3.amazonaws.com"

// awsSettings reads them. A profile that the user named must exist.
func (r *run) awsSettings() (awsSettings, error) {
	named := cmp.Or(r.Getenv("AWS_PROFILE"), r.Getenv("AWS_DEFAULT_PROFILE"))
	conf := awsSettings{
		profile:     cmp.Or(named, "default"),
		credentials: cmp.Or(r.Getenv("AWS_SHARED_CREDENTIALS_FILE"), filepath.Join(r.Home, ".aws", "credentials")),
	}
	section := "profile " + conf.profile
	if conf.profile == "default" {
		section = conf.profile
	}
	config := readINI(cmp.Or(r.Getenv("AWS_CONFIG_FILE"), filepath.Join(r.Home, ".aws", "config")))
	if named != "" && named != "default" && !config.HasSection(section) && !readINI(conf.credentials).HasSection(named) {
		return conf, &TargetError{
			r.To.text, "AWS_PROFILE names the profile " + named + ", which is neither in ~/.aws/config nor in ~/.aws/credentials",
			"correct AWS_PROFILE, or add the profile: aws configure --profile " + named,
		}
	}
	said := config.Section(section)
	conf.endpoint = cmp.Or(r.Getenv("AWS_ENDPOINT_URL_S3"), r.Getenv("AWS_ENDPOINT_URL"), said.Key("endpoint_url").String(), amazon)
	conf.region = cmp.Or(r.Getenv("AWS_REGION"), r.Getenv("AWS_DEFAULT_REGION"), said.Key("region").String())
	return conf, nil
}

// readINI reads a file of sections. One that is not there or cannot be read has none.
func readINI(file string) *ini.File {
	read, err := ini.LooseLoad(file)
	if err != nil {
		return ini.Empty()
	}
	return read
}

// awsCredentials takes credentials from where Amazon's own tools take them: the environment, the
// file of credentials (with its credential_process and SSO), the role of the machine or container.
func (r *run) awsCredentials(conf awsSettings) *credentials.Credentials {
	if id, key := r.Getenv("AWS_ACCESS_KEY_ID"), r.Getenv("AWS_SECRET_ACCESS_KEY"); id != "" && key != "" {
		r.secrets.add(key, r.Getenv("AWS_SESSION_TOKEN"))
		return credentials.NewStaticV4(id, key, r.Getenv("AWS_SESSION_TOKEN"))
	}
	file := &credentials.FileAWSCredentials{Filename: conf.credentials, Profile: conf.profile}
	chain := []credentials.Provider{secretProvider{file, r.secrets}}
	if conf.endpoint == amazon || r.Getenv("AWS_WEB_IDENTITY_TOKEN_FILE") != "" {
		chain = append(chain, secretProvider{&credentials.IAM{}, r.secrets})
	}
	return credentials.NewChainCredentials(chain)
}

// secretProvider keeps the credentials of a provider out of messages.
type secretProvider struct {
	credentials.Provider
	secrets *secrets
}

// RetrieveWithCredContext implements credentials.Provider.
func (p secretProvider) RetrieveWithCredContext(cc *credentials.CredContext) (credentials.Value, error) {
	v, err := p.Provider.RetrieveWithCredContext(cc)
	p.secrets.add(v.SecretAccessKey, v.SessionToken)
	return v, err
}
