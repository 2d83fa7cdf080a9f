// Package ec2 has the names of github.com/aws/aws-sdk-go-v2/service/ec2 that Felix compiles with
// (felix/aws/ec2.go). Each call is refused.
package ec2

import (
	"context"
	"errors"

	"github.com/aws/aws-sdk-go-v2/service/ec2/types"
)

var errNotBuilt = errors.New("this Felix was built for a testbed, without Amazon's EC2 client")

// Options has the fields that Felix sets.
type Options struct{ Region string }

// DescribeInstancesInput names instances.
type DescribeInstancesInput struct{ InstanceIds []string }

// DescribeInstancesOutput lists instances.
type DescribeInstancesOutput struct{ Reservations []types.Reservation }

// ModifyNetworkInterfaceAttributeInput names an interface and what to set.
type ModifyNetworkInterfaceAttributeInput struct {
	NetworkInterfaceId *string
	SourceDestCheck    *types.AttributeBooleanValue
}

// ModifyNetworkInterfaceAttributeOutput is empty.
type ModifyNetworkInterfaceAttributeOutput struct{}

// Client refuses each call.
type Client struct{}

// NewFromConfig returns a Client, whatever the configuration.
func NewFromConfig[C any](C, ...func(*Options)) *Client { return &Client{} }

// DescribeInstances is refused.
func (*Client) DescribeInstances(context.Context, *DescribeInstancesInput, ...func(*Options)) (
	*DescribeInstancesOutput, error) {
	return nil, errNotBuilt
}

// ModifyNetworkInterfaceAttribute is refused.
func (*Client) ModifyNetworkInterfaceAttribute(context.Context, *ModifyNetworkInterfaceAttributeInput,
	...func(*Options)) (*ModifyNetworkInterfaceAttributeOutput, error) {
	return nil, errNotBuilt
}
