module github.com/1password/onepassword-sdk-go

go 1.26.1
