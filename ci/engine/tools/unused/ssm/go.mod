module github.com/aws/aws-sdk-go-v2/service/ssm

go 1.26.1

require github.com/aws/aws-sdk-go-v2 v1.41.5
