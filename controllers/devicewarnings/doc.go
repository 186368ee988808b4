// Package devicewarnings records Warning Events on Devices for what a person should look at: a desired value that the model does not allow, a missing
// model, a mapper that refuses or does not answer, a device that nothing serves, a refused message.
//
// What gateways know comes from the conditions in the DeviceStatus, which only the node of the Device writes; the owner of the node looks every ten
// seconds at what has changed: Devices, their models and statuses, and which gateways are owned and connected. A warning is recorded when it begins or
// changes, and each hour while it lasts. Each node has a budget of its own, so that a stolen gateway uses up no other's; what is beyond it is recorded
// later.
package devicewarnings
