// Stands for Amazon's EC2 client, which Felix imports for one setting of Amazon's network interfaces. To compile the
// client takes a minute of a processor, and a testbed has no Amazon.
module github.com/aws/aws-sdk-go-v2/service/ec2

go 1.23
