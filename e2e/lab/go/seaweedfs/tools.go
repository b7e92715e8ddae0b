//go:build tools

// Package tools pins the program built from this module.
package tools

import _ "github.com/seaweedfs/seaweedfs/weed"
