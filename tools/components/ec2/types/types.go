// Package types has the types of an EC2 instance that Felix reads.
package types

// AttributeBooleanValue is a value of an attribute.
type AttributeBooleanValue struct{ Value *bool }

// Reservation is a set of instances.
type Reservation struct{ Instances []Instance }

// Instance has network interfaces.
type Instance struct{ NetworkInterfaces []InstanceNetworkInterface }

// InstanceNetworkInterface is an interface of an instance.
type InstanceNetworkInterface struct {
	Attachment         *InstanceNetworkInterfaceAttachment
	NetworkInterfaceId *string
}

// InstanceNetworkInterfaceAttachment says which of an instance's interfaces it is.
type InstanceNetworkInterfaceAttachment struct{ DeviceIndex *int32 }
