// Package shapes is written as badly as it may be: gofmt has something to do in every line.
package   shapes
import ("math";"sort"
        "fmt")
const(
Small=iota ;Medium
      Large )
type Shape interface{Area()float64;Name() string}
type(
Circle struct{Radius float64 ;name   string}
	Square struct   {
 Side float64 // one side
     Tag   map[string][]int   `json:"tag"` // a tag
	}
)
func (c Circle)Area()float64{return math.Pi*c.Radius*c.Radius}
func (c   Circle) Name()string{ return c.name }
func(s Square)Area()(float64){ return s.Side*s.Side }
func (s Square) Name () string { return fmt.Sprintf( "square of %v",s.Side ) }
func Sorted[T Shape]( shapes ...T )[]T{
result:=append([]T(nil),shapes ... )
	sort.Slice(result,func(i,j int)bool{return result[ i ].Area()<result[ j ].Area()})
       return result }
func Classify(s Shape)(size int){
switch area:=s.Area();{
case area<1 :size=Small
case area<10&&area>=1:
size=Medium
	default:
                size=Large
}
	for i:=0;i<3;i++{ if i==2{continue};size+=i<<1&1
	label:
	for{select{ default: break label }}
	}
return}
var table=map[string]struct{X,Y int}{"origin":{0,0},"far away":{X:1e3,Y:-1},
"near":{1,
2},
}
func Use(values chan<-Shape , done <-chan struct{}){
go func(){defer close( values );values<-Circle{1,"unit"};values<-&Square{Side:2,Tag:map[string][]int{"a":[]int{1,2,3},"bb":nil}}}()
<-done
var(_=table;x=[...]int{ 1,2,3 }
y   []int=x[0:2:3])
_,_=x,y
}
